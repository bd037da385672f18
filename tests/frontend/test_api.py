"""The API as the official client sees it, against an engine that echoes the prompt."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from blink_numba.vocabularies import load_tokenizer

TINY = load_tokenizer("tiny")
HELLO = [{"role": "user", "content": "héllo"}]


def echo(prompt: bytes, tokens: int) -> bytes:
    """What the engine answers."""
    return bytes(prompt[k % len(prompt)] for k in range(tokens))


def test_completion(client):
    made = client.completions.create(model="tiny", prompt="abc", max_tokens=7, temperature=0)
    choice = made.choices[0]
    assert (choice.text, choice.finish_reason) == ("abcabca", "length")
    assert made.object == "text_completion"
    assert (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.total_tokens) == (3, 7, 10)


def test_completion_streams(client):
    chunks = list(client.completions.create(model="tiny", prompt="abc", max_tokens=7, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abcabca"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert len({chunk.id for chunk in chunks}) == 1


def test_chat(client):
    made = client.chat.completions.create(model="tiny", messages=HELLO, max_completion_tokens=200)
    rendered = TINY.apply_chat_template(HELLO, tokenize=False)
    assert made.choices[0].message.role == "assistant"
    # the echo of the prompt meets <|im_end|>, an end-of-sequence id
    assert made.choices[0].finish_reason == "stop"
    assert made.choices[0].message.content == "user\nhéllo"
    assert made.usage.prompt_tokens == len(TINY.encode(rendered, parse_special=True))


def test_chat_streams_role_text_and_usage(client):
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "user\nhéllo"
    assert [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len("user\nhéllo".encode()) + 2  # and both marks


def test_log_probabilities_of_a_completion(client):
    """In the official client's types; what the engine makes up is in `blink_numba.bench.instant`."""
    made = client.completions.create(model="tiny", prompt="a\u00e9", max_tokens=4, temperature=0, logprobs=2)
    told = made.choices[0].logprobs
    assert made.choices[0].text == "a\u00e9a"
    assert told.tokens == ["a", "bytes:\\xc3", "bytes:\\xa9", "a"]
    assert told.token_logprobs == [-0.125 * (token % 31) for token in (0x61, 0xC3, 0xA9, 0x61)]
    assert told.text_offset == [0, 1, 1, 2]
    assert list(told.top_logprobs[0]) == ["a", "bytes:\\x86", "bytes:\\xab"]
    assert list(told.top_logprobs[0].values()) == [told.token_logprobs[0], -0.125, -0.25]


def test_log_probabilities_of_a_chat(client):
    """Whole and streamed; bytes tell what a token's text cannot."""
    ask = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "logprobs": True, "top_logprobs": 3}
    content = client.chat.completions.create(**ask).choices[0].logprobs.content
    chunks = client.chat.completions.create(**ask, stream=True)
    told = [chunk.choices[0].logprobs for chunk in chunks]
    assert [entry for piece in told if piece for entry in piece.content] == content
    assert len(content) == 8
    tokens = TINY.encode(TINY.apply_chat_template(HELLO, tokenize=False), parse_special=True).tolist()[:8]
    assert [entry.logprob for entry in content] == [-0.125 * (token % 31) for token in tokens]
    assert [bytes(entry.bytes) for entry in content] == [TINY.token_bytes(token) for token in tokens]
    assert content[0].token == "<|im_start|>"
    for token, entry in zip(tokens, content):
        others = [(token + 37 * k) % 259 for k in (1, 2, 3)]
        assert [bytes(other.bytes) for other in entry.top_logprobs] == [TINY.token_bytes(t) for t in others]
        assert [other.logprob for other in entry.top_logprobs] == [-0.125, -0.25, -0.375]


def test_log_probabilities_without_alternatives(client):
    entry = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1, logprobs=True)
    assert entry.choices[0].logprobs.content[0].top_logprobs == []
    made = client.completions.create(model="tiny", prompt="b", max_tokens=1, logprobs=0)
    assert made.choices[0].logprobs.top_logprobs == [{"b": -0.125 * (0x62 % 31)}]


def test_content_may_come_in_parts(client):
    parts = [{"type": "text", "text": "hé"}, {"type": "text", "text": "llo"}]
    made = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": parts}])
    assert made.choices[0].message.content == "user\nhéllo"


def test_several_prompts_and_answers_are_numbered(client):
    made = client.completions.create(model="tiny", prompt=["ab", "xy"], n=2, max_tokens=3, echo=True)
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in made.choices] == ["ababa"] * 2 + ["xyxyx"] * 2
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (4, 12)


def test_token_ids_are_a_prompt(client):
    made = client.completions.create(model="tiny", prompt=[97, 98], max_tokens=3)
    assert made.choices[0].text == "aba"
    many = client.completions.create(model="tiny", prompt=[[97], [98, 99]], max_tokens=3)
    assert [choice.text for choice in many.choices] == ["aaa", "bcb"]


def test_stop_string_ends_the_answer_and_its_slot(client, server):
    made = client.completions.create(model="tiny", prompt="abcd", max_tokens=1000, stop=["zz", "da"])
    assert (made.choices[0].text, made.choices[0].finish_reason) == ("abc", "stop")
    assert made.choices[0].stop_reason == "da"
    assert made.usage.completion_tokens == 5


def test_stop_ids_and_ignore_eos(client):
    made = client.completions.create(
        model="tiny", prompt=[97, 257, 98], max_tokens=5, extra_body={"ignore_eos": True}
    )
    assert (made.choices[0].text, made.choices[0].finish_reason) == ("aba", "length")
    made = client.completions.create(
        model="tiny", prompt="abc", max_tokens=5, extra_body={"stop_token_ids": [98]}
    )
    assert (made.choices[0].text, made.choices[0].stop_reason) == ("a", 98)


def test_special_tokens_may_be_shown(client):
    made = client.completions.create(
        model="tiny", prompt=[97, 257], max_tokens=2,
        extra_body={"ignore_eos": True, "skip_special_tokens": False},
    )  # fmt: skip
    assert made.choices[0].text == "a<|im_end|>"


def test_the_default_length_of_a_completion_is_openais(client):
    assert client.completions.create(model="tiny", prompt="ab").usage.completion_tokens == 16


def test_usage_may_come_with_every_chunk(client):
    chunks = list(
        client.completions.create(
            model="tiny", prompt="abc", max_tokens=5, stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
        )
    )  # fmt: skip
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 5


def test_neutral_values_are_taken(client):
    client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=2, frequency_penalty=0, presence_penalty=0.0, logit_bias={},
        response_format={"type": "text"}, n=1, user="someone", logprobs=False,
    )  # fmt: skip


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").max_model_len == 2048
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_tokenize_and_back(server):
    there = httpx.post(f"{server.url}/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    assert (there["count"], there["tokens"], there["max_model_len"]) == (3, [104, 195, 169], 2048)
    back = httpx.post(f"{server.url}/detokenize", json={"tokens": there["tokens"]}).json()
    assert back == {"prompt": "hé"}
    chat = httpx.post(f"{server.url}/tokenize", json={"messages": HELLO}).json()
    assert chat["tokens"] == TINY.apply_chat_template(HELLO).tolist()


def test_request_id_goes_in_and_out(server):
    given = httpx.get(f"{server.url}/version", headers={"X-Request-Id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    made = httpx.get(f"{server.url}/version")
    assert len(made.headers["x-request-id"]) >= 16
    unclean = httpx.get(f"{server.url}/version", headers={"X-Request-Id": "a b"})
    assert unclean.headers["x-request-id"] not in ("a b", "")


def test_health_version_and_openapi(server):
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    assert "version" in httpx.get(f"{server.url}/version").json()
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    assert "/v1/chat/completions" in paths


def test_many_clients_at_once(server):
    async def one(client: openai.AsyncOpenAI, k: int) -> tuple[str, bytes]:
        prompt, tokens = f"<{k}>", 20 + k
        if k % 2:
            made = await client.completions.create(model="tiny", prompt=prompt, max_tokens=tokens)
            return made.choices[0].text, echo(prompt.encode(), tokens)
        text = ""
        async for chunk in await client.completions.create(
            model="tiny", prompt=prompt, max_tokens=tokens, stream=True
        ):
            text += chunk.choices[0].text
        return text, echo(prompt.encode(), tokens)

    async def all_of_them() -> list[tuple[str, bytes]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return await asyncio.gather(*[one(client, k) for k in range(64)])

    for text, expected in asyncio.run(all_of_them()):
        assert text.encode() == expected


def test_chunks_are_separate_events(server):
    body = {"model": "tiny", "prompt": 'a\u2028b\r\n"', "max_tokens": 12, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        raw = b"".join(response.iter_bytes())
    events = raw.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    texts = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-2]]
    assert "".join(texts).encode() == echo('a\u2028b\r\n"'.encode(), 12)
