"""Things that end when they should not: `/health` tells the truth, nothing hangs, service comes back."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from blink_numba.config import ServeConfig
from blink_numba.errors import EngineStartError
from blink_numba.serving import Serving, ServingError
from ring.memory import RingMemory, ring_path
from tests.frontend.harness import Running, ring_name, wait_until
from tests.frontend.test_load import all_slots_empty

TRUTH_S = 2.0  # issue: within two seconds
ENDLESS = {
    "model": "tiny",
    "prompt": "ab",
    "max_tokens": 1900,
    "stream": True,
    "temperature": 0,
    "ignore_eos": True,
}


class InstantProcess:
    """The engine that answers at once, in a process that can be killed. 1 ms a step."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "blink_numba.bench.instant", name, "1000"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def name():
    name = ring_name()
    yield name
    ring_path(name).unlink(missing_ok=True)


@contextmanager
def engine_and_server(name: str, **settings) -> Iterator[tuple[InstantProcess, Running]]:
    engine = InstantProcess(name)
    try:
        with Running(name, **settings) as server:
            yield engine, server
    finally:
        engine.end()


def healthy(server) -> bool:
    return httpx.get(f"{server.url}/health").status_code == 200


def answers(server) -> bool:
    body = {"model": "tiny", "prompt": "ab", "max_tokens": 4}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60.0).status_code == 200


def events_of(response: httpx.Response) -> Iterator[dict]:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


def test_without_a_ring_requests_get_503_until_there_is_one(name):
    with Running(name, first_engine_s=0.0) as server:
        health = httpx.get(f"{server.url}/health")
        assert health.status_code == 503
        assert "no ring" in health.json()["reason"]
        body = {"model": "tiny", "prompt": "ab", "max_tokens": 4}
        refused = httpx.post(f"{server.url}/v1/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        engine = InstantProcess(name)
        try:
            assert wait_until(lambda: healthy(server), 30.0)
            assert answers(server)
        finally:
            engine.end()


def test_an_engine_that_is_killed(name):
    """The stream ends with an error event, health turns, and a new engine is used."""
    with engine_and_server(name, engine_grace_s=0.2) as (engine, server):
        with httpx.stream("POST", f"{server.url}/v1/completions", json=ENDLESS, timeout=30.0) as response:
            events = events_of(response)
            next(events)
            engine.end()
            assert wait_until(lambda: not healthy(server), TRUTH_S)
            *_, last = events
        assert last["error"]["code"] == "engine_unavailable"
        another = InstantProcess(name)
        try:
            assert wait_until(lambda: healthy(server), 30.0)
            assert answers(server)
            assert server.service.link.live == 0
        finally:
            another.end()


def test_an_engine_that_hangs_is_not_healthy_and_requests_go_on_after(name):
    with engine_and_server(name) as (engine, server):
        engine.signal(signal.SIGSTOP)
        assert wait_until(lambda: not healthy(server), TRUTH_S)
        assert "silent" in httpx.get(f"{server.url}/health").json()["reason"]
        engine.signal(signal.SIGCONT)
        assert wait_until(lambda: healthy(server), TRUTH_S)
        assert answers(server)


def test_the_wall_clock_may_jump(name, monkeypatch):
    with engine_and_server(name) as (_, server):
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 1e6)
        assert answers(server)
        monkeypatch.setattr(time, "time", lambda: real() - 1e6)
        assert answers(server)
        assert healthy(server)
        metrics = server.service.metrics
        assert 0.0 <= metrics.e2e.total < 60.0
        assert 0.0 <= metrics.ttft.total < 60.0


def serve_tiny(**options) -> ServeConfig:
    settings = {
        "model": "tiny", "backend": "cpu", "port": 0, "ring": ring_name(), "slots": 64, "max_num_seqs": 8,
        "kv_tokens": 16384, "log_level": "error", "access_log": False,
    }  # fmt: skip
    return ServeConfig(**settings | options)


def test_a_port_in_use_is_an_error_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ServingError, match=f"port {port} of 127.0.0.1 is in use: choose another with --port"
        ):
            Serving(serve_tiny(port=port), lambda line: None)


def test_no_room_for_the_ring_is_one_clear_line():
    room = os.statvfs("/dev/shm")
    too_many = 2 * room.f_blocks * room.f_frsize // 4
    config = serve_tiny().engine()
    with pytest.raises(EngineStartError, match="no room for a ring"):
        from blink_numba.runtime import EngineConfig, LocalEngine

        LocalEngine(EngineConfig(**{**json.loads(config.to_json()), "arena_tokens": too_many}))
    assert not ring_path(config.ring_name).exists()


def test_a_half_written_model_file_is_one_clear_line(tmp_path):
    broken = tmp_path / "model.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\x01" * 40)
    with pytest.raises(EngineStartError) as raised:
        Serving(serve_tiny(model=str(broken)), lambda line: None).start()
    assert "model.gguf" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def serving():
    """Both processes, watched as `blink-numba serve` does."""
    with Serving(serve_tiny(), lambda line: None) as serving:
        watcher = threading.Thread(target=serving.watch, daemon=True)
        watcher.start()
        yield serving
        serving.request_stop()
        watcher.join(10.0)


def wait_for_service(serving) -> bool:
    def there() -> bool:
        try:
            return healthy(serving) and answers(serving)
        except httpx.HTTPError:
            return False

    return wait_until(there, 120.0)


def test_a_front_end_that_is_killed_is_replaced_and_its_slots_are_freed(serving):
    with RingMemory.attach(serving._config.ring_name) as ring:
        with httpx.stream("POST", f"{serving.url}/v1/completions", json=ENDLESS, timeout=30.0) as response:
            pieces = response.iter_bytes()
            next(pieces)
            before = serving.front_end_pid
            os.kill(before, signal.SIGKILL)
            with pytest.raises(httpx.HTTPError):
                list(pieces)
        assert wait_for_service(serving)
        assert serving.front_end_pid != before
        assert wait_until(lambda: all_slots_empty(ring))


def test_an_engine_that_is_killed_is_replaced(serving):
    """What was in service gets an error event; the next request an answer."""
    with httpx.stream("POST", f"{serving.url}/v1/completions", json=ENDLESS, timeout=120.0) as response:
        events = events_of(response)
        next(events)
        before = serving.engine_pid
        os.kill(before, signal.SIGKILL)
        assert wait_until(lambda: not healthy(serving), TRUTH_S)
        *_, last = events
    assert last["error"]["type"] in ("server_error", "overloaded_error")
    assert wait_for_service(serving)
    assert serving.engine_pid != before


def test_sigterm_lets_requests_finish(serving):
    """Last of its module: the front end is asked to end while it streams."""
    body = ENDLESS | {"max_tokens": 300, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{serving.url}/v1/completions", json=body, timeout=60.0) as response:
        events = events_of(response)
        next(events)
        os.kill(serving.front_end_pid, signal.SIGTERM)
        *_, last = events
    assert last["usage"]["completion_tokens"] == 300
    assert wait_for_service(serving)  # the watcher started another one
