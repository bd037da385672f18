"""Streamed text is unstreamed text: 200 generated requests, the same question asked both ways."""

from __future__ import annotations

import json
import random

import httpx
import pytest

from blink_numba.vocabularies import load_tokenizer

TINY = load_tokenizer("tiny")
ALPHABET = ["a", "b", "ab", " ", "\n", "é", "€", "😀", "\u2028", '"', "\\", "<|im_end|>", "中文", "\x00"]


def generated(seed: int) -> tuple[str, dict]:
    """A request, seeded: path and body."""
    rng = random.Random(seed)
    text = "".join(rng.choices(ALPHABET, k=rng.randint(1, 12)))
    body: dict = {
        "model": "tiny",
        "max_tokens": rng.randint(1, 60),
        "n": rng.choice([1, 1, 1, 2, 3]),
        "ignore_eos": rng.random() < 0.5,
        "min_tokens": 0 if rng.random() < 0.7 else 1,
        "skip_special_tokens": rng.random() < 0.7,
        "include_stop_str_in_output": rng.random() < 0.3,
    }
    if rng.random() < 0.6:
        body["stop"] = ["".join(rng.choices(ALPHABET, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.2:
        body["stop_token_ids"] = rng.sample(range(256), 3)
    wanted = rng.choice([None, None, 0, 1, 20])
    if rng.random() < 0.5:
        if wanted is not None:
            body |= {"logprobs": True, "top_logprobs": wanted}
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]}
    body["logprobs"] = wanted
    body["echo"] = wanted is None and rng.random() < 0.3
    prompts = [text] if rng.random() < 0.8 else [text, "xyz"]
    if rng.random() < 0.3:  # halves of characters
        ids = TINY.encode(text, parse_special=True).tolist()
        return "/v1/completions", body | {"prompt": ids[rng.randrange(len(ids)) :]}
    return "/v1/completions", body | {"prompt": prompts}


@pytest.fixture(scope="module")
def http():
    with httpx.Client(timeout=60.0) as http:
        yield http


def whole(http: httpx.Client, url: str, body: dict) -> tuple[list[tuple], dict]:
    answer = http.post(url, json=body)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    choices = [
        (
            c.get("text", c.get("message", {}).get("content")),
            c["finish_reason"],
            c["stop_reason"],
            c["logprobs"],
        )
        for c in made["choices"]
    ]
    return choices, made["usage"]


def streamed(http: httpx.Client, url: str, body: dict) -> tuple[list[tuple], dict]:
    texts: dict[int, str] = {}
    ends: dict[int, tuple] = {}
    logprobs: dict[int, dict | None] = {}
    usage: dict = {}
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    with http.stream("POST", url, json=body) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk["usage"] or usage
            for choice in chunk["choices"]:
                index = choice["index"]
                assert index not in ends, "text after the end"
                texts[index] = texts.get(index, "") + choice.get(
                    "text", choice.get("delta", {}).get("content", "")
                )
                logprobs[index] = joined(logprobs.get(index), choice["logprobs"])
                if choice["finish_reason"] is not None:
                    ends[index] = (choice["finish_reason"], choice.get("stop_reason"))
    return [(texts[k], *ends[k], logprobs[k]) for k in sorted(texts)], usage


def joined(before: dict | None, more: dict | None) -> dict | None:
    """Log-probabilities of two pieces of an answer, as those of the whole."""
    if before is None or more is None:
        return before or more
    return {name: before[name] and before[name] + more[name] for name in before}


def check_logprobs(logprobs: dict | None, text: str, body: dict, chat: bool) -> int:
    """What one answer's log-probabilities must be, whatever the engine says; how many tokens they have."""
    if chat:
        assert logprobs is not None
        for entry in logprobs["content"]:
            assert len(entry["top_logprobs"]) == body["top_logprobs"]
            for one in (entry, *entry["top_logprobs"]):
                assert one["logprob"] <= 0.0
                assert one["token"].startswith("bytes:") or one["token"].encode() == bytes(one["bytes"])
        return len(logprobs["content"])
    assert logprobs is not None
    assert len({len(column) for column in logprobs.values()}) == 1
    for token, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
        assert top[token] == logprob
        assert len(top) <= 1 + body["logprobs"]
    places = [*logprobs["text_offset"], len(text)]
    for token, start, end in zip(logprobs["tokens"], places, places[1:]):
        if start < end and not token.startswith("bytes:"):
            assert text[start:end] == token or not body["skip_special_tokens"] or body.get("stop")
    return len(logprobs["tokens"])


@pytest.mark.parametrize("block", range(8))
def test_streamed_equals_unstreamed(server, http, block):
    for seed in range(block * 25, block * 25 + 25):
        path, body = generated(seed)
        one, one_usage = whole(http, server.url + path, body)
        other, other_usage = streamed(http, server.url + path, body)
        assert one == other, body
        assert one_usage == other_usage, body
        assert one_usage["total_tokens"] == one_usage["prompt_tokens"] + one_usage["completion_tokens"]
        assert one_usage["completion_tokens"] <= body["max_tokens"] * len(one)
        if body.get("logprobs") is not None:
            chat = path.startswith("/v1/chat")
            counts = [check_logprobs(logprobs, text, body, chat) for text, _, _, logprobs in one]
            assert sum(counts) == one_usage["completion_tokens"]
        else:
            assert all(logprobs is None for *_, logprobs in one)
        for text, finish, stop_reason, _ in one:
            assert finish in ("stop", "length")
            if isinstance(stop_reason, str):
                assert stop_reason in body["stop"]
                kept = body["include_stop_str_in_output"]
                assert text.endswith(stop_reason) == kept or not kept
