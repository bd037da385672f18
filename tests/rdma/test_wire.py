"""The bootstrap's wire: who does not know the key, or speaks otherwise, gets nowhere."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest

from rdma import TransportError, TransportLost
from rdma.verbs.wire import MIN_KEY_BYTES, PROTOCOL, VERSION, Refused, Wire, check_key

KEY, OTHER = b"k" * MIN_KEY_BYTES, b"o" * MIN_KEY_BYTES
DEADLINE_S = 10.0


class Pair:
    """A client's and a host's end over a local connection."""

    def __init__(self, host_key: bytes = KEY) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.outcome: list = []
        self._key = host_key
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        peer, _ = self.listener.accept()
        try:
            self.outcome.append(Wire.accept(peer, self._key, DEADLINE_S))
        except TransportError as error:
            self.outcome.append(error)

    def host(self):
        """The host's end, or why there is none."""
        self._thread.join(DEADLINE_S)
        return self.outcome[0]

    def close(self) -> None:
        self.listener.close()
        self._thread.join(DEADLINE_S)
        if self.outcome and isinstance(self.outcome[0], Wire):
            self.outcome[0].close()


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


def test_both_ends_talk_after_the_handshake(pair):
    client = Wire.connect("127.0.0.1", pair.port, KEY, DEADLINE_S)
    host = pair.host()
    client.send({"op": "attach"})
    assert host.receive(DEADLINE_S) == {"op": "attach"}
    host.send({"refused": "held", "message": "taken"})
    host.send({"fine": True})
    with pytest.raises(Refused, match="taken") as caught:
        client.ask({}, DEADLINE_S)
    assert caught.value.cause == "held"
    assert client.receive(DEADLINE_S) == {"fine": True}
    assert not client.ended()
    host.close()
    assert client.ended()
    client.close()
    client.close()


def test_another_key_is_refused(pair):
    with pytest.raises(Refused) as caught:
        Wire.connect("127.0.0.1", pair.port, OTHER, DEADLINE_S)
    assert caught.value.cause == "key"
    assert pair.host().cause == "key"


def _raw(port: int) -> Wire:
    return Wire(socket.create_connection(("127.0.0.1", port)))


def test_another_version_is_refused_by_the_host(pair):
    client = _raw(pair.port)
    assert client._receive_plain(time.monotonic() + DEADLINE_S)["version"] == VERSION
    client._send_plain({"version": VERSION + 1})
    assert client._receive_plain(time.monotonic() + DEADLINE_S)["refused"] == "version"
    assert pair.host().cause == "version"
    client.close()


@pytest.mark.parametrize(
    ("greeting", "error"),
    [
        ({"protocol": PROTOCOL, "version": VERSION + 1, "nonce": "0"}, "same blink-numba"),
        ({"protocol": "http", "version": VERSION}, "no blink-numba engine"),
        ({}, "no blink-numba engine"),
    ],
)
def test_another_host_is_refused_by_the_client(greeting, error):
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: Wire(listener.accept()[0])._send_plain(greeting))
    thread.start()
    with pytest.raises(TransportError, match=error):
        Wire.connect("127.0.0.1", listener.getsockname()[1], KEY, DEADLINE_S)
    thread.join()
    listener.close()


def test_a_forged_replayed_or_reordered_frame_ends_the_connection():
    for forge in (lambda frame, later: frame[:-1] + b"!", lambda frame, later: later):
        pair = Pair()
        client = Wire.connect("127.0.0.1", pair.port, KEY, DEADLINE_S)
        sent: list[bytes] = []
        client._send_bytes = sent.append
        client.send({"op": "attach", "front_end": 0})
        client.send({"op": "attach", "front_end": 1})
        del client._send_bytes
        client._send_bytes(forge(*sent))
        with pytest.raises(TransportLost, match="authentic"):
            pair.host().receive(DEADLINE_S)
        client.close()
        pair.close()


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", struct.pack("!I", 1 << 30), struct.pack("!I", 3) + b"[1]", b""]
)
def test_noise_is_dropped(pair, noise):
    with socket.create_connection(("127.0.0.1", pair.port)) as peer:
        peer.sendall(noise)
    assert isinstance(pair.host(), TransportError)


def test_a_peer_that_says_nothing_is_given_up():
    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(TransportLost, match="answer"):
        Wire.connect("127.0.0.1", listener.getsockname()[1], KEY, 0.05)
    listener.close()


def test_nobody_there():
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(TransportLost, match="is the engine running"):
        Wire.connect("127.0.0.1", port, KEY, DEADLINE_S)


@pytest.mark.parametrize("key", [None, "", "short", b"x" * (MIN_KEY_BYTES - 1)])
def test_a_key_must_be_long_enough(key):
    with pytest.raises(TransportError, match="BLINK_NUMBA_RDMA_KEY"):
        check_key(key)
