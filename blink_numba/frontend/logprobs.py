"""Log-probabilities of an answer in OpenAI's shapes.

An answer has an entry for each token that its usage counts, the one that ended it included. The
lists of a stream's chunks, joined, are the lists of the same answer at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blink_numba.vocabularies import bytes_of, text_of
from ring.logprobs import unpack_records
from tokenizer import Tokenizer

LOWEST = -9999.0  # what OpenAI says of a token that cannot come: JSON has no infinity


class LogprobLog:
    """What is known of an answer's tokens and was not told to the client yet.

    Parameters
    ----------
    tokenizer : Tokenizer
    chat : bool
        The chat API's shape (``content``), or that of text completions.
    skip_special : bool
        Control tokens are no part of the text.
    """

    __slots__ = ("_chat", "_decoder", "_entries", "_length", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, chat: bool, skip_special: bool) -> None:
        self._tokenizer, self._chat = tokenizer, chat
        self._decoder = None if chat else tokenizer.stream_decoder(skip_special=skip_special)
        self._length = 0  # characters of the text so far
        self._entries: list[Any] = []

    def add(self, tokens: list[int], records: np.ndarray) -> None:
        """Take in tokens of the answer.

        Parameters
        ----------
        records : int64[tokens, pairs]
            As `rdma.port.Event` has them.
        """
        for token, record in zip(tokens, unpack_records(records), strict=True):
            if self._decoder is None:
                entry = self._entry(token, record.logprob)
                entry["top_logprobs"] = [self._entry(*other) for other in record.likeliest]
                self._entries.append(entry)
                continue
            name = text_of(self._tokenizer, token)
            top = {name: _finite(record.logprob)}
            for other, logprob in record.likeliest:
                top.setdefault(text_of(self._tokenizer, other), _finite(logprob))
            self._entries.append((name, _finite(record.logprob), top, self._length))
            self._length += len(self._decoder.push(token))

    def take(self) -> dict[str, Any] | None:
        """The ``logprobs`` of what came since the last call; None if nothing did."""
        entries, self._entries = self._entries, []
        if not entries:
            return None
        if self._chat:
            return {"content": entries, "refusal": None}
        names, logprobs, tops, offsets = map(list, zip(*entries, strict=True))
        return {"tokens": names, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": text_of(self._tokenizer, token),
            "logprob": _finite(logprob),
            "bytes": list(bytes_of(self._tokenizer, token)),
        }


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
