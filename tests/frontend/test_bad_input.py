"""What bad input gets: a 4xx with the reason and the parameter, never a 5xx, never silence."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.frontend.harness import ADMIN_KEY

CHAT, TEXT, ADMIN = "/v1/chat/completions", "/v1/completions", "/admin/policy"
HEADERS = {"content-type": "application/json", "authorization": f"Bearer {ADMIN_KEY}"}
USER = [{"role": "user", "content": "hi"}]


def chat(**fields) -> bytes:
    return json.dumps({"model": "tiny", "messages": USER, "max_tokens": 2, **fields}).encode()


def text(**fields) -> bytes:
    return json.dumps({"model": "tiny", "prompt": "hi", "max_tokens": 2, **fields}).encode()


CASES = {
    # case: (path, body, status, param)
    "context exceeded by a chat": (CHAT, chat(messages=[{"role": "user", "content": "x" * 3000}]), 400, "messages"),
    "context exceeded by a text": (TEXT, text(prompt="x" * 3000), 400, "prompt"),
    "context exceeded by ids": (TEXT, text(prompt=[97] * 3000), 400, "prompt"),
    "max_tokens beyond the context": (TEXT, text(max_tokens=4000), 400, "max_tokens"),
    "max_completion_tokens beyond the context": (
        CHAT, json.dumps({"messages": USER, "max_completion_tokens": 4000}).encode(), 400, "max_completion_tokens",
    ),
    "both limits": (CHAT, chat(max_completion_tokens=3), 400, "max_tokens"),
    "max_tokens zero": (TEXT, text(max_tokens=0), 400, "max_tokens"),
    "max_tokens huge": (TEXT, text(max_tokens=10**30), 400, "max_tokens"),
    "max_tokens as text": (TEXT, text(max_tokens="5"), 400, "max_tokens"),
    "max_tokens as float": (TEXT, text(max_tokens=5.5), 400, "max_tokens"),
    "max_tokens as bool": (TEXT, text(max_tokens=True), 400, "max_tokens"),
    "min_tokens above max_tokens": (TEXT, text(min_tokens=3), 400, "min_tokens"),
    "empty prompt": (TEXT, text(prompt=""), 400, "prompt"),
    "empty list of prompts": (TEXT, text(prompt=[]), 400, "prompt"),
    "empty list of ids": (TEXT, text(prompt=[[]]), 400, "prompt[0]"),
    "no prompt": (TEXT, b'{"model":"tiny"}', 400, "prompt"),
    "mixed prompts": (TEXT, text(prompt=["a", 1]), 400, "prompt[1]"),
    "token id out of range": (TEXT, text(prompt=[97, 5000]), 400, "prompt"),
    "token id negative": (TEXT, text(prompt=[-1]), 400, "prompt"),
    "no messages": (CHAT, b'{"model":"tiny"}', 400, "messages"),
    "empty messages": (CHAT, chat(messages=[]), 400, "messages"),
    "unknown role": (CHAT, chat(messages=[{"role": "boss", "content": "x"}]), 400, "messages[0].role"),
    "tool role": (CHAT, chat(messages=[{"role": "tool", "content": "x"}]), 400, "messages[0].role"),
    "no content": (CHAT, chat(messages=[{"role": "user"}]), 400, "messages[0].content"),
    "content is null": (CHAT, chat(messages=[{"role": "user", "content": None}]), 400, "messages[0].content"),
    "image part": (
        CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        400, "messages[0].content[0].type",
    ),
    "field in a message": (
        CHAT, chat(messages=[{"role": "user", "content": "x", "name": "me"}]), 400, "messages[0].name",
    ),
    "an answer with tool calls in a conversation": (
        CHAT, chat(messages=[{"role": "assistant", "content": "x", "tool_calls": [{}]}]), 400, "messages[0].tool_calls",
    ),
    "unknown model": (TEXT, text(model="gpt-4"), 404, "model"),
    "model is a number": (TEXT, text(model=3), 400, "model"),
    "unknown parameter": (TEXT, text(temprature=1), 400, "temprature"),
    "negative temperature": (TEXT, text(temperature=-0.1), 400, "temperature"),
    "temperature as text": (TEXT, text(temperature="hot"), 400, "temperature"),
    "temperature NaN": (TEXT, b'{"model":"tiny","prompt":"x","temperature":NaN}', 400, "temperature"),
    "temperature infinite": (TEXT, b'{"model":"tiny","prompt":"x","temperature":Infinity}', 400, "temperature"),
    "top_p zero": (TEXT, text(top_p=0), 400, "top_p"),
    "top_p above one": (TEXT, text(top_p=1.1), 400, "top_p"),
    "top_k below -1": (TEXT, text(top_k=-2), 400, "top_k"),
    "seed too large": (TEXT, text(seed=1 << 70), 400, "seed"),
    "n zero": (TEXT, text(n=0), 400, "n"),
    "n huge": (TEXT, text(n=10**6), 400, "n"),
    "too many answers": (TEXT, text(prompt=["a"] * 100, n=100), 400, "n"),
    "too many prompts": (TEXT, text(prompt=["a"] * 1000), 400, "prompt"),
    "10,000 stop strings": (TEXT, text(stop=[f"s{k}" for k in range(10_000)]), 400, "stop"),
    "empty stop string": (TEXT, text(stop=[""]), 400, "stop"),
    "stop is a number": (TEXT, text(stop=3), 400, "stop"),
    "long stop string": (TEXT, text(stop="x" * 100_000), 400, "stop"),
    "too many stop ids": (TEXT, text(stop_token_ids=list(range(50))), 400, "stop_token_ids"),
    "stop id beyond the vocabulary": (TEXT, text(stop_token_ids=[99999]), 400, "stop_token_ids"),
    "negative priority": (TEXT, text(priority=-1), 400, "priority"),
    "too many log probabilities": (TEXT, text(logprobs=21), 400, "logprobs"),
    "negative log probabilities": (TEXT, text(logprobs=-1), 400, "logprobs"),
    "log probabilities of a text as a flag": (TEXT, text(logprobs=True), 400, "logprobs"),
    "log probabilities of a chat as a number": (CHAT, chat(logprobs=3), 400, "logprobs"),
    "log probabilities of an echo": (TEXT, text(logprobs=1, echo=True), 400, "echo"),
    "too many alternatives": (CHAT, chat(logprobs=True, top_logprobs=21), 400, "top_logprobs"),
    "alternatives without log probabilities": (CHAT, chat(top_logprobs=2), 400, "top_logprobs"),
    "frequency_penalty": (TEXT, text(frequency_penalty=0.5), 400, "frequency_penalty"),
    "presence_penalty": (TEXT, text(presence_penalty=0.5), 400, "presence_penalty"),
    "logit_bias": (TEXT, text(logit_bias={"5": 1.0}), 400, "logit_bias"),
    "best_of": (TEXT, text(best_of=2), 400, "best_of"),
    "suffix": (TEXT, text(suffix="x"), 400, "suffix"),
    "tools": (CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}]), 400, "tools"),
    "JSON answers": (CHAT, chat(response_format={"type": "json_object"}), 400, "response_format"),
    "stream options without a stream": (CHAT, chat(stream_options={"include_usage": True}), 400, "stream_options"),
    "unknown stream option": (CHAT, chat(stream=True, stream_options={"x": 1}), 400, "stream_options.x"),
    "stream is a text": (CHAT, chat(stream="yes"), 400, "stream"),
    "malformed JSON": (TEXT, b'{"model": "tiny", ', 400, None),
    "no body": (TEXT, b"", 400, None),
    "JSON but no object": (TEXT, b"[1, 2]", 400, None),
    "invalid UTF-8": (TEXT, b'{"model":"tiny","prompt":"\xff\xfe"}', 400, None),
    "lone surrogate": (TEXT, b'{"model":"tiny","prompt":"\\ud800"}', 400, None),
    "100,000-deep JSON": (TEXT, b"[" * 100_000 + b"]" * 100_000, 400, None),
    "100,000-deep prompt": (TEXT, b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, None),
    "5 MB prompt": (TEXT, text(prompt="x" * 5_000_000), 413, None),
    "2 MB prompt": (TEXT, text(prompt="x" * 2_000_000), 400, "prompt"),
    "2 MB of multi-byte text": (CHAT, chat(messages=[{"role": "user", "content": "é" * 300_000}]), 400, "messages"),
    "tokenize nothing": ("/tokenize", b"{}", 400, "prompt"),
    "tokenize both": ("/tokenize", b'{"prompt":"x","messages":[{"role":"user","content":"x"}]}', 400, "prompt"),
    "no policy": (ADMIN, b"{}", 400, "policy"),
    "policy is a number": (ADMIN, b'{"policy":3}', 400, "policy"),
    "policy is null": (ADMIN, b'{"policy":null}', 400, "policy"),
    "empty policy": (ADMIN, b'{"policy":""}', 400, "policy"),
    "policy of 43 characters": (ADMIN, b'{"policy":"' + b"p" * 43 + b'"}', 400, "policy"),
    "policy in a file": (ADMIN, b'{"policy":"/tmp/p.py:P"}', 400, "policy"),
    "policy in a module": (ADMIN, b'{"policy":"os:P"}', 400, "policy"),
    "policy with a NUL": (ADMIN, b'{"policy":"fcfs\\u0000"}', 400, "policy"),
    "policy with a line break": (ADMIN, b'{"policy":"fcfs\\n"}', 400, "policy"),
    "policy beyond ASCII": (ADMIN, '{"policy":"fcfś"}'.encode(), 400, "policy"),
    "policy and more": (ADMIN, b'{"policy":"fcfs","timeout":1}', 400, "timeout"),
    "policy as a list": (ADMIN, b'["fcfs"]', 400, None),
    "no JSON for a policy": (ADMIN, b"fcfs", 400, None),
    "policy twice": (ADMIN, b'{"policy":"fcfs","policy":"srpt"}', 400, "policy"),
    "a key twice": (TEXT, b'{"prompt":"a","max_tokens":1,"max_tokens":2}', 400, "max_tokens"),
    "a key twice, once escaped": (TEXT, b'{"prompt":"a","prom\\u0070t":"a"}', 400, "prompt"),
    "a key twice, inside": (
        CHAT, b'{"messages":[{"role":"user","content":"a"},{"role":"user","content":"a","content":"b"}]}',
        400, "content",
    ),
    "a key twice, of many": (
        TEXT, b'{"prompt":"a",' + b'"seed":1,' * 100_000 + b'"max_tokens":1}', 400, "seed",
    ),
    "detokenize unknown id": ("/detokenize", b'{"tokens":[97,99999]}', 400, "tokens[1]"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_body(server, case):
    path, body, status, param = CASES[case]
    answer = httpx.post(server.url + path, content=body, headers=HEADERS, timeout=30)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert error["message"]
    assert error["type"] in ("invalid_request_error", "not_found_error")
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("case", ["unknown model", "malformed JSON", "negative temperature"])
def test_a_bad_request_that_streams_gets_a_plain_error(server, case):
    path, body, status, _ = CASES[case]
    body = body.replace(b"{", b'{"stream":true,', 1)
    answer = httpx.post(server.url + path, content=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"


def test_other_content_types_are_refused(server):
    answer = httpx.post(server.url + TEXT, content=b"prompt=x", headers={"content-type": "text/plain"})
    assert answer.status_code == 415


def test_packed_bodies_are_refused(server):
    answer = httpx.post(server.url + TEXT, content=text(), headers={"content-encoding": "gzip"})
    assert answer.status_code == 415
    assert "gzip" in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [
    b'{"prompt":"a","model":"' + b"m" * 1_000_000 + b'"}', b'{"prompt":"a","' + b"k" * 1_000_000 + b'":1}',
    text(max_tokens=10**2000),
])  # fmt: skip
def test_an_error_does_not_repeat_a_megabyte(server, body):
    answer = httpx.post(server.url + TEXT, content=body)
    assert answer.status_code in (400, 404)
    assert len(answer.content) < 5000


def test_an_answer_can_be_sent_back_as_it_came(server):
    """What clients do in a conversation: append the message they got."""
    first = httpx.post(server.url + CHAT, content=chat()).json()["choices"][0]["message"]
    official = {**first, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    for message in (first, official):
        answer = httpx.post(server.url + CHAT, content=chat(messages=[*USER, message, *USER]))
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("method", "path", "status"), [
    ("POST", TEXT + "/", 404), ("GET", "/" + "x" * 50_000, 404),
    ("GET", "/v1/nothing", 404), ("GET", "/", 404), ("POST", "/v1/models", 405), ("GET", TEXT, 405),
    ("DELETE", ADMIN, 405), ("POST", ADMIN + "/", 404),
    ("GET", "/v1/models/" + "x" * 1000, 404),
])  # fmt: skip
def test_unknown_places(server, method, path, status):
    answer = httpx.request(method, server.url + path)
    assert answer.status_code == status
    assert 0 < len(answer.json()["error"]["message"]) < 1500


def test_the_server_still_answers(server):
    """After everything above: this module's last test."""
    assert httpx.post(server.url + TEXT, content=text()).status_code == 200
    assert httpx.get(server.url + "/health").status_code == 200
