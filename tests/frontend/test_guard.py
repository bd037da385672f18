"""Clients that do not keep up, or do not stop: a bounded wait, then an answer or a close."""

from __future__ import annotations

import json
import socket
import time

import httpx
import pytest

from blink_numba.bench.instant import InstantEngine
from tests.frontend.harness import Running, ring_name, wait_until


@pytest.fixture(scope="module")
def hasty():
    """A front end with short patience and without an engine: it only refuses."""
    with Running("no-such-ring", header_timeout_s=0.3, body_timeout_s=0.3, max_header_bytes=4096,
                 keep_alive_s=1.0, first_engine_s=0.0) as running:  # fmt: skip
        yield running


@pytest.fixture(scope="module")
def paced():
    """A front end whose engine takes its time: requests live long enough to be cancelled."""
    with (
        InstantEngine(ring_name(), slots=64, max_model_len=2048, vocab_size=259, step_ns=2_000_000) as engine,
        Running(engine.ring_name) as running,
    ):
        yield running


def closes(connection: socket.socket, within: float = 10.0) -> bytes:
    """What the server sent until it closed; fails if it does not close."""
    connection.settimeout(within)
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def connect(running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.port))


def test_a_connection_without_a_request_is_closed(hasty):
    with connect(hasty) as slow:
        assert b"408" in closes(slow).split(b"\r\n")[0]


def test_slow_loris(hasty):
    with connect(hasty) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n")
        for _ in range(3):
            time.sleep(0.05)
            slow.sendall(b"x-a: b\r\n")
        assert b"408" in closes(slow).split(b"\r\n")[0]


def test_a_body_that_does_not_come(hasty):
    with connect(hasty) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        received = closes(slow)
        assert b"408" in received.split(b"\r\n")[0]
        assert b"body" in received


def test_a_header_without_end(hasty):
    with connect(hasty) as endless:
        endless.sendall(b"GET / HTTP/1.1\r\n" + b"x-a: " + b"b" * 8192)
        assert b"431" in closes(endless).split(b"\r\n")[0]


def test_a_large_body_is_not_a_large_header(hasty):
    body = json.dumps({"model": "tiny", "prompt": "x" * 50_000})
    answer = httpx.post(f"{hasty.url}/v1/completions", content=body)
    assert answer.status_code == 503  # no engine there


def test_no_http(hasty):
    with connect(hasty) as wrong:
        wrong.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        received = closes(wrong)
        assert received.split(b"\r\n")[0].startswith(b"HTTP/1.1 400")
        assert b'"error"' in received


@pytest.mark.parametrize(
    "upgrade", [b"Upgrade: h2c", b"UPGRADE : h2c".replace(b" :", b":"), b"upgrade:websocket"]
)
def test_a_client_that_would_like_another_protocol_is_answered_in_this_one(server, upgrade):
    body = json.dumps({"model": "tiny", "prompt": "hi", "max_tokens": 2}).encode()
    with connect(server) as eager:
        for last in (b"", b", close"):  # twice on one connection
            eager.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + upgrade + b"\r\n"
                b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\n"
                b"Connection: Upgrade, HTTP2-Settings"
                + last
                + b"\r\ncontent-length: %d\r\n\r\n" % len(body)
                + body
            )
            if not last:
                eager.settimeout(10.0)
                assert eager.recv(65536).startswith(b"HTTP/1.1 200")
        assert closes(eager).startswith(b"HTTP/1.1 200")


def test_a_body_longer_than_allowed_without_a_length(server):
    def pieces():
        for _ in range(100):
            yield b" " * 100_000

    try:
        answer = httpx.post(f"{server.url}/v1/completions", content=pieces())
    except httpx.WriteError:
        return  # closed while we were still sending
    assert answer.status_code == 413


def test_a_client_that_stops_reading_is_cut_off(server):
    link = server.service.link
    with Running_on_same_engine(server, write_timeout_s=0.3) as running, connect(running) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"model": "tiny", "prompt": "abcdefgh", "max_tokens": 2000, "stream": True,
                           "n": 64}).encode()  # fmt: skip
        deaf.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        assert wait_until(lambda: running.app.active == 1)
        assert wait_until(lambda: running.app.active == 0)
    assert link.live == 0


class Running_on_same_engine(Running):
    """Another server over the link of a running one (a ring has one front end here)."""

    def __init__(self, running: Running, **settings) -> None:
        super().__init__("unused", first_engine_s=0.0, **settings)
        self.service.link = running.service.link


def test_a_disconnect_frees_the_slots(paced):
    link = paced.service.link
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 2000, "stream": True, "n": 8}
    with httpx.stream("POST", f"{paced.url}/v1/completions", json=body) as response:
        pieces = response.iter_bytes()  # closes the connection when it is dropped
        next(pieces)
        assert link.live == 8
    assert wait_until(lambda: link.live == 0, seconds=2.0)
    metrics = httpx.get(f"{paced.url}/metrics").text
    assert 'vllm:request_success_total{finished_reason="abort",model_name="tiny"} 8.0' in metrics


def test_a_disconnect_before_the_answer_frees_the_slots(paced):
    body = json.dumps({"model": "tiny", "prompt": "abc", "max_tokens": 2000, "n": 8}).encode()
    with connect(paced) as hasty_client:
        hasty_client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        hasty_client.sendall(body)
        assert wait_until(lambda: paced.service.link.live == 8)
    assert wait_until(lambda: paced.service.link.live == 0, seconds=2.0)


def test_a_full_ring_gets_503_after_a_bounded_wait(paced):
    """64 slots, 128 answers, none of which ends in time."""
    with Running_on_same_engine(paced) as running:
        link = paced.service.link
        link._queue_timeout_s, before = 0.2, link._queue_timeout_s
        try:
            body = {"model": "tiny", "prompt": "abc", "max_tokens": 2000, "n": 64}
            with httpx.stream(
                "POST", f"{running.url}/v1/completions", json=body | {"stream": True}
            ) as response:
                pieces = response.iter_bytes()
                next(pieces)
                answer = httpx.post(f"{running.url}/v1/completions", json=body)
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ring_full")
                assert answer.headers["retry-after"] == "1"
        finally:
            link._queue_timeout_s = before
    assert wait_until(lambda: link.live == 0)


def test_a_request_that_waits_for_a_slot_is_answered_when_one_is_free(paced):
    """Twice as many answers as slots: the second half waits, and nobody is refused."""
    body = {"model": "tiny", "prompt": "ab", "max_tokens": 50, "n": 128}
    answer = httpx.post(f"{paced.url}/v1/completions", json=body, timeout=30.0)
    assert [choice["text"] for choice in answer.json()["choices"]] == ["ab" * 25] * 128
    assert paced.service.link.live == 0


def test_api_keys(server):
    with Running_on_same_engine(server, api_keys=("one", "two")) as running:
        url = f"{running.url}/v1/models"
        assert httpx.get(url).status_code == 401
        wrong = httpx.get(url, headers={"authorization": "Bearer three"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
        for key in ("one", "two"):
            assert httpx.get(url, headers={"authorization": f"Bearer {key}"}).status_code == 200
        assert httpx.get(f"{running.url}/health").status_code == 200


def test_too_many_requests_at_once(server):
    with Running_on_same_engine(server, max_requests=0) as running:
        answer = httpx.get(f"{running.url}/v1/models")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_requests")
        assert answer.headers["retry-after"] == "1"
