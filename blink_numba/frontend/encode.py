"""Server-sent chunks and whole responses, as bytes.

A chunk differs from the one before it in its text alone, so everything around the text is
made once an answer; at 15,000 chunks a second that is what the time goes to.
"""

from __future__ import annotations

import json
from json.encoder import (
    encode_basestring_ascii as quote,  # line separators of Unicode split lines in some clients
)

DONE = b"data: [DONE]\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class ChunkEncoder:
    """Chunks of one answer of a stream.

    Parameters
    ----------
    chat : bool
        Chat chunks (``delta``) or text chunks.
    head : dict
        ``id``, ``created`` and ``model`` of the response.
    index : int
        The answer's index.
    with_usage : bool
        Chunks carry a ``usage`` field, null unless given.
    """

    __slots__ = ("_after", "_before", "_chat", "_middle", "_plain_end", "_started", "_with_usage")

    def __init__(self, chat: bool, head: dict, index: int, with_usage: bool) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        fields = json.dumps({"id": head["id"], "object": kind, "created": head["created"],
                             "model": head["model"]}, ensure_ascii=False)[:-1]  # fmt: skip
        body = '"delta":{"content":' if chat else '"text":'
        self._before = f'data: {fields}, "choices":[{{"index":{index},{body}'
        self._middle = '},"logprobs":' if chat else ',"logprobs":'
        self._plain_end = ',"usage":null}\n\n' if with_usage else "}\n\n"
        self._after = f'{self._middle}null,"finish_reason":null}}]{self._plain_end}'
        self._chat = chat
        self._with_usage = with_usage
        self._started = not chat

    def text(self, text: str) -> str:
        """A chunk of text in the middle of an answer."""
        if self._started:
            return f"{self._before}{quote(text)}{self._after}"
        return self._role() + self.text(text)

    def more(self, text: str, logprobs: dict | None, counts: dict[str, int] | None) -> str:
        """A chunk in the middle that also tells log-probabilities, or the usage so far."""
        return f"{self._start(text, logprobs)}null}}]{self._end(counts)}"

    def last(self, text: str, finish: str, stop_reason: str | int | None = None,
             counts: dict[str, int] | None = None, logprobs: dict | None = None) -> str:  # fmt: skip
        """The chunk that ends an answer, with what is left of its text."""
        reason = "" if stop_reason is None else f',"stop_reason":{json.dumps(stop_reason)}'
        return f"{self._start(text, logprobs)}{quote(finish)}{reason}}}]{self._end(counts)}"

    def _start(self, text: str, logprobs: dict | None) -> str:
        role = "" if self._started else self._role()
        told = "null" if logprobs is None else json.dumps(logprobs)
        return f'{role}{self._before}{quote(text)}{self._middle}{told},"finish_reason":'

    def _end(self, counts: dict[str, int] | None) -> str:
        if counts is None or not self._with_usage:
            return self._plain_end
        return f',"usage":{json.dumps(counts)}}}\n\n'

    def _role(self) -> str:
        """The first chunk of a chat answer names its role."""
        self._started = True
        return self._before.removesuffix('"content":') + '"role":"assistant","content":""' + self._after


def usage_chunk(chat: bool, head: dict, counts: dict[str, int]) -> str:
    """The chunk without choices that ends a stream with ``include_usage``."""
    kind = "chat.completion.chunk" if chat else "text_completion"
    body = {"id": head["id"], "object": kind, "created": head["created"], "model": head["model"],
            "choices": [], "usage": counts}  # fmt: skip
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def whole(chat: bool, head: dict, answers: list[dict], counts: dict[str, int]) -> bytes:
    """The response of a request that does not stream.

    Parameters
    ----------
    answers : list of dict
        ``index``, ``text``, ``logprobs``, ``finish_reason``, ``stop_reason`` of each answer.
    """
    choices = []
    for answer in answers:
        body = (
            {"message": {"role": "assistant", "content": answer["text"], "refusal": None}}
            if chat
            else {"text": answer["text"]}
        )
        choices.append({
            "index": answer["index"], **body, "logprobs": answer["logprobs"],
            "finish_reason": answer["finish_reason"], "stop_reason": answer["stop_reason"],
        })  # fmt: skip
    kind = "chat.completion" if chat else "text_completion"
    response = {"id": head["id"], "object": kind, "created": head["created"], "model": head["model"],
                "choices": choices, "usage": counts}  # fmt: skip
    return json.dumps(response, ensure_ascii=False).encode()


def error_event(body: bytes) -> bytes:
    """An error after the stream has begun."""
    return b"data: " + body + b"\n\n"
