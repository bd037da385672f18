"""The commands `engine` and `frontend`, as far as they go without an RDMA device."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

from blink_numba.remote import VerbsConnector, parse_address, run_engine, shared_key
from blink_numba.runtime import EngineConfig
from rdma import FrontEndPort, Request, ShmTransport, TransportError
from rdma.verbs import VerbsUnavailable
from ring import layout as at
from ring.memory import RingMemory, ring_path
from ring.states import Reason
from tests.rdma.peer import ring_name

KEY = "a key of the tests that is long enough"


@pytest.mark.parametrize(
    ("text", "address"),
    [("10.0.0.1:7471", ("10.0.0.1", 7471)), ("engine:1", ("engine", 1)), ("[fe80::1]:80", ("fe80::1", 80))],
)
def test_an_address(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["engine", "engine:", ":80", "engine:http", "engine:0", "engine:70000", ""])
def test_no_address(text):
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)


def test_what_is_missing_is_said_before_a_model_is_loaded(monkeypatch):
    monkeypatch.delenv("BLINK_NUMBA_RDMA_KEY", raising=False)
    config = EngineConfig(model="no such model")
    with pytest.raises(TransportError, match="BLINK_NUMBA_RDMA_KEY"):
        run_engine(config)
    with pytest.raises(VerbsUnavailable):
        run_engine(config, key=KEY, device="no-such-device")
    with pytest.raises(ValueError, match="transport='tcp'"):
        run_engine(config, transport="tcp")
    with pytest.raises(VerbsUnavailable):
        VerbsConnector("localhost", 1, key=KEY, device="no-such-device").connect()


@pytest.mark.timeout(900)
def test_an_engine_that_dies_is_replaced_on_its_ring():
    ring = ring_name("supervised")
    config = EngineConfig(
        model="tiny", backend="cpu", ring_name=ring, slots=32, max_seats=1, max_model_len=128, threads=1
    )
    stop, ready, status = threading.Event(), threading.Event(), []
    supervisor = threading.Thread(
        target=lambda: status.append(
            run_engine(config, transport="shm", on_ready=lambda line: ready.set(), stop=stop)
        )
    )
    supervisor.start()
    try:
        assert ready.wait(300)
        with RingMemory.attach(ring) as memory, FrontEndPort(ShmTransport.attach(ring)) as port:
            first_pid = int(memory.view.info[at.I_OWNER_PID])
            prompt = np.arange(5, dtype=np.int32)
            in_service = port.submit(Request(prompt, max_tokens=120, ignore_eos=True))
            while not port.poll():
                time.sleep(0.001)
            queued = port.submit(Request(prompt, max_tokens=3, ignore_eos=True))
            os.kill(first_pid, signal.SIGKILL)
            ends = {}
            give_up = time.monotonic() + 300
            while port.live():
                assert time.monotonic() < give_up, ends
                ends |= {event.handle: event.reason for event in port.poll() if event.reason}
                time.sleep(port.idle_interval())
            assert ends[in_service] == Reason.ERROR
            assert ends[queued] == Reason.LENGTH
            assert int(memory.view.info[at.I_OWNER_PID]) != first_pid
    finally:
        stop.set()
        supervisor.join(60)
    assert status == [0]
    assert not ring_path(ring).exists()


@pytest.mark.parametrize(
    ("mode", "content", "match"),
    [
        (0o600, KEY + "\n", None),
        (0o400, f"  {KEY}\n\n", None),
        (0o640, KEY, "chmod 600"),
        (0o604, KEY, "chmod 600"),
        (0o600, "short\n", "at least 16 bytes"),
        (0o600, "\n" * 40, "at least 16 bytes"),
        (0o600, "x" * 5000, "the right one"),
    ],
)
def test_a_key_file_must_be_private_and_hold_a_key(tmp_path, monkeypatch, mode, content, match):
    monkeypatch.delenv("BLINK_NUMBA_RDMA_KEY", raising=False)
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(mode)
    if match is None:
        assert shared_key(None, path) == KEY.encode()
        with pytest.raises(TransportError, match="not both"):
            shared_key(KEY, path)
        return
    with pytest.raises(TransportError, match=match):
        shared_key(None, path)


def test_a_key_file_must_be_there_and_a_file(tmp_path):
    with pytest.raises(TransportError, match="No such file"):
        shared_key(None, tmp_path / "key")
    with pytest.raises(TransportError, match="no regular file"):
        shared_key(None, tmp_path)


def test_a_port_in_use_is_said_before_a_model_is_loaded(fabric, monkeypatch):
    monkeypatch.setattr("rdma.verbs.open_device", fabric.open_device)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(TransportError, match="in use"),
    ):
        port = taken.getsockname()[1]
        run_engine(EngineConfig(model="no such model"), key=KEY, host="127.0.0.1", port=port)


def test_a_signal_ends_an_engine_that_is_still_starting(fabric, monkeypatch):
    monkeypatch.setattr("rdma.verbs.open_device", fabric.open_device)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ended = []

    class SlowEngine:
        def wait_ready(self, on_progress) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

        def stop(self, drain: bool) -> None:
            ended.append(drain)

    monkeypatch.setattr("blink_numba.runtime.EngineProcess.spawn", lambda config: SlowEngine())
    try:
        assert run_engine(EngineConfig(model="tiny"), key=KEY, host="127.0.0.1", port=0) == 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert len(ended) == 1


@pytest.mark.timeout(900)
def test_an_engine_that_ends_finishes_what_is_in_service_over_verbs(fabric, monkeypatch):
    monkeypatch.setattr("rdma.verbs.open_device", fabric.open_device)
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    config = EngineConfig(
        model="tiny", backend="cpu", ring_name=ring_name("hosted"), slots=32, max_seats=1, max_model_len=128,
        threads=1,
    )  # fmt: skip
    stop, ready, status = threading.Event(), threading.Event(), []
    options = {"key": KEY, "host": "127.0.0.1", "port": number, "stop": stop}
    supervisor = threading.Thread(
        target=lambda: status.append(run_engine(config, on_ready=lambda line: ready.set(), **options))
    )
    supervisor.start()
    try:
        assert ready.wait(300)
        connector = VerbsConnector("127.0.0.1", number, key=KEY)
        assert connector.model() == "tiny"
        port = connector.connect()
        handle = port.submit(Request(np.arange(5, dtype=np.int32), max_tokens=120, ignore_eos=True))
        events = port.poll()
        while not events:
            events = port.poll()
        stop.set()
        give_up = time.monotonic() + 60
        while port.live():
            assert time.monotonic() < give_up, events
            events += port.poll()
            time.sleep(port.idle_interval())
        assert {event.handle for event in events} == {handle}
        assert events[-1].reason == Reason.LENGTH
        assert sum(len(event.tokens) for event in events) == 120
        port.transport.close()
    finally:
        stop.set()
        supervisor.join(60)
    assert status == [0]
    assert not ring_path(config.ring_name).exists()
