"""The bootstrap against strangers, cuts and nonsense: one clear error each, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rdma import TransportError, TransportLost
from rdma.verbs import Refused, VerbsTransport, bind_listener, host, wire
from rdma.verbs.wire import PROTOCOL, VERSION, Wire
from ring.layout import RING_VERSION
from tests.rdma.guest.wire_scenarios import KEY, Setup, setup

SECRET = KEY.encode()
DEADLINE_S = 10.0
EXAMPLES = int(os.environ.get("BLINK_FUZZ_EXAMPLES", "60"))
fuzzed = settings(
    deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

numbers = st.one_of(
    st.integers(-2, 40), st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=20)
)
nested = st.recursive(
    numbers,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
greetings = st.fixed_dictionaries(
    {},
    optional={
        "protocol": st.just(PROTOCOL) | nested,
        "version": st.just(VERSION) | nested,
        "nonce": nested,
        "proof": st.text() | nested,
        "refused": nested,
        "message": nested,
    },
)


def framed(payload: bytes) -> bytes:
    return struct.pack("!I", len(payload)) + payload


def as_json(message: object) -> bytes:
    return wire.json.dumps(message).encode()


noise = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=200).map(framed),
    nested.map(as_json).map(framed),
    greetings.map(as_json).map(framed),
    st.just(framed(b"[" * 1020)),
    st.just(framed(b'{"proof": "\\ud800\xc3\xa9"}')),
    st.integers(0, (1 << 32) - 1).map(lambda length: struct.pack("!I", length)),
)


def is_one_line(error: Exception) -> bool:
    return bool(str(error)) and "\n" not in str(error)


@contextmanager
def one_clear_error_at_most() -> Iterator[None]:
    caught: list[TransportError] = []
    try:
        yield
    except TransportError as error:
        caught.append(error)
    assert all(map(is_one_line, caught))


@pytest.fixture
def world(fabric) -> Iterator[Setup]:
    before = open_sockets()
    with setup() as made:
        yield made
    wait_for(lambda: open_sockets() <= before, "sockets were left")


def open_sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed since
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


def wait_for(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up, what
        time.sleep(0.002)


def nobody_is_connected(world: Setup) -> bool:
    return not world.host._connections and world.host.sessions() == []


def hang_up_and_see(world: Setup, peer: socket.socket) -> None:
    """The host ends a connection after our last word, and forgets it."""
    peer.settimeout(DEADLINE_S)
    with peer, suppress(ConnectionError):
        with suppress(OSError):  # it hung up already
            peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 16):
            pass
    wait_for(lambda: nobody_is_connected(world), "a connection was not forgotten")


# --- what strangers send --------------------------------------------------------------------------


@given(words=st.lists(noise, max_size=4))
@fuzzed
def test_a_stranger_s_noise_ends_its_connection_and_no_more(world, words):
    peer = socket.create_connection(("127.0.0.1", world.host.port))
    with suppress(ConnectionError):
        for word in words:
            peer.sendall(word)
    hang_up_and_see(world, peer)


@given(hello=st.dictionaries(st.sampled_from([
    "op", "front_end", "takeover", "session", "epoch", "ring_version", "queue", "pid", "started",
]), nested))  # fmt: skip
@fuzzed
def test_a_front_end_that_sends_nonsense_is_told_so(world, hello):
    for message in (hello, {"op": "attach", "front_end": 0, "ring_version": RING_VERSION} | hello):
        end = Wire.connect("127.0.0.1", world.host.port, SECRET, DEADLINE_S)
        with pytest.raises(TransportError) as caught:
            end.ask(message, DEADLINE_S)
        assert is_one_line(caught.value)
        end.close()
    wait_for(lambda: nobody_is_connected(world), "a connection was not forgotten")


@given(request=st.dictionaries(st.sampled_from(["op", "pid", "started"]), nested | st.just("holder_gone")))
@fuzzed
def test_a_session_that_asks_nonsense_ends(world, request):
    transport = world.transport()
    if request.get("op") == "leave":
        request["op"] = "stay"
    with one_clear_error_at_most():
        transport._ask(request)
    transport.close()
    wait_for(lambda: nobody_is_connected(world), "a session was not forgotten")


def test_a_hello_heard_on_another_connection_proves_nothing(world):
    heard: list[bytes] = []
    send = Wire._send_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wire, "_send_bytes", lambda end, frame: (heard.append(frame), send(end, frame))[1])
        world.transport().close()
    (hello,) = [frame for frame in heard if b"proof" in frame and b"nonce" in frame]
    end = Wire(socket.create_connection(("127.0.0.1", world.host.port)))
    end._receive_plain(time.monotonic() + DEADLINE_S)
    end._send_bytes(hello)
    assert end._receive_plain(time.monotonic() + DEADLINE_S)["refused"] == "key"
    end.close()


# --- what a host sends ------------------------------------------------------------------------------


@contextmanager
def somebody(behaviour: Callable[[socket.socket], None]) -> Iterator[int]:
    """Somebody who accepts one connection at a port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = listener.accept()
        with peer, suppress(ConnectionError):  # the front end hung up
            behaviour(peer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join(DEADLINE_S)
        listener.close()
        assert not thread.is_alive()


@given(words=st.lists(noise, max_size=3))
@fuzzed
def test_whoever_answers_in_place_of_a_host_causes_one_clear_error(fabric, words):
    def talk(peer: socket.socket) -> None:
        for word in words:
            peer.sendall(word)

    with somebody(talk) as port, pytest.raises(TransportError) as caught:
        VerbsTransport("127.0.0.1", port, key=KEY, deadline_s=DEADLINE_S)
    assert is_one_line(caught.value)
    assert str(caught.value).isprintable()


WELCOME = [
    "session", "host", "queue", "grants", "geometry", "epoch", "max_model_len", "vocab_size", "about",
]  # fmt: skip


@given(
    changed=st.dictionaries(st.sampled_from(WELCOME), nested, min_size=1), without=st.sampled_from(WELCOME)
)
@fuzzed
def test_a_host_that_describes_another_ring_causes_one_clear_error(world, changed, without):
    describe = world.host._describe

    def describe_otherwise(session) -> dict:
        return {name: value for name, value in (describe(session) | changed).items() if name != without}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.host, "_describe", describe_otherwise)
        with one_clear_error_at_most():
            world.transport().close()
    wait_for(lambda: nobody_is_connected(world), "a session was not forgotten")


def relay(world: Setup, cut_after: int, towards_host: bool) -> Callable[[socket.socket], None]:
    """Pass bytes between a front end and the host; hang up on both after so many in one direction."""

    def run(peer: socket.socket) -> None:
        host_end = socket.create_connection(("127.0.0.1", world.host.port))
        counts = {True: 0, False: 0}

        def pump(source: socket.socket, sink: socket.socket, direction: bool) -> None:
            try:
                while data := source.recv(1 << 12):
                    if direction == towards_host:
                        data = data[: max(cut_after - counts[direction], 0)]
                    counts[direction] += len(data)
                    sink.sendall(data)
                    if direction == towards_host and counts[direction] >= cut_after:
                        break
            except OSError:
                pass
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        back = threading.Thread(target=pump, args=(host_end, peer, False))
        back.start()
        pump(peer, host_end, True)
        back.join()
        host_end.close()

    return run


def conversation(world: Setup) -> dict[bool, list[int]]:
    """Bytes until each frame's end, of attaching: by the front end, and by the host."""
    ends: dict[bool, list[int]] = {True: [], False: []}
    send = Wire._send_bytes

    def count(end: Wire, frame: bytes) -> None:
        by_front_end = end._socket.getpeername()[1] == world.host.port
        ends[by_front_end].append((ends[by_front_end] or [0])[-1] + 4 + len(frame))
        send(end, frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wire, "_send_bytes", count)
        world.transport().close()
    return {True: ends[True][:2], False: ends[False][:3]}  # hello, attach; greeting, proof, welcome


@pytest.mark.parametrize("towards_host", [True, False], ids=["to the host", "to the front end"])
def test_a_peer_gone_in_the_middle_of_any_message_is_a_lost_connection(world, towards_host):
    ends = conversation(world)[towards_host]
    starts = [0, *ends[:-1]]
    cuts = {
        cut
        for start, end in zip(starts, ends, strict=True)
        for cut in (start + 1, start + 4, start + 9, end - 40)
    }
    for cut in sorted(cuts | set(starts)):
        with (
            somebody(relay(world, cut, towards_host)) as port,
            pytest.raises(TransportLost, match="bootstrap connection") as caught,
        ):
            VerbsTransport("127.0.0.1", port, key=KEY, deadline_s=DEADLINE_S)
        assert is_one_line(caught.value)
        wait_for(lambda: nobody_is_connected(world), f"cut after {cut} bytes, something was left")
    world.transport().close()


# --- who is slow, or many ---------------------------------------------------------------------------


@pytest.mark.parametrize("first", [b"", struct.pack("!I", 1000)])
def test_a_stranger_who_sends_drop_by_drop_is_not_waited_for(world, monkeypatch, first):
    monkeypatch.setattr(host, "HANDSHAKE_S", 0.2)
    with socket.create_connection(("127.0.0.1", world.host.port)) as peer:
        peer.sendall(first)
        peer.settimeout(0.02)
        hung_up = False
        for _ in range(400):  # twenty times the time the host gives, were it counted a byte
            try:
                peer.send(b"{")
                hung_up = len(peer.recv(1 << 10)) == 0
            except TimeoutError:
                continue
            except ConnectionError:
                hung_up = True
            if hung_up:
                break
        assert hung_up


def test_a_host_that_sends_drop_by_drop_is_not_waited_for(fabric):
    ended = threading.Event()

    def drip(peer: socket.socket) -> None:
        peer.sendall(struct.pack("!I", 1000))
        while not ended.wait(0.02):
            peer.sendall(b"{")

    with somebody(drip) as port:
        with pytest.raises(TransportLost, match="does not answer"):
            VerbsTransport("127.0.0.1", port, key=KEY, deadline_s=0.3)
        ended.set()


def test_who_proves_the_key_and_says_no_more_is_not_waited_for(world, monkeypatch):
    monkeypatch.setattr(host, "HANDSHAKE_S", 0.2)
    end = Wire.connect("127.0.0.1", world.host.port, SECRET, DEADLINE_S)
    with pytest.raises(TransportLost):
        end.receive(DEADLINE_S)
    end.close()


def test_strangers_without_number_keep_nobody_out(world, monkeypatch):
    monkeypatch.setattr(host, "MAX_CONNECTIONS", 16)
    threads = threading.active_count()
    strangers = [
        socket.create_connection(("127.0.0.1", world.host.port)) for _ in range(3 * host.MAX_CONNECTIONS)
    ]
    port = world.port()
    world.submit(port, 4)
    strangers += [
        socket.create_connection(("127.0.0.1", world.host.port)) for _ in range(host.MAX_CONNECTIONS)
    ]
    world.finish(port)
    assert port.transport.counters.reconnects == 0
    assert len(world.host._connections) <= host.MAX_CONNECTIONS + 2
    assert port.close() == 0
    for stranger in strangers:
        stranger.close()
    wait_for(lambda: nobody_is_connected(world), "strangers were not forgotten")
    wait_for(lambda: threading.active_count() <= threads, "threads were left")


def test_of_many_that_want_one_place_one_gets_it(world):
    outcomes: list[VerbsTransport | TransportError] = []

    def attach() -> None:
        try:
            outcomes.append(world.transport(takeover=True))
        except TransportError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=attach) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [outcome for outcome in outcomes if isinstance(outcome, VerbsTransport)]
    lost = [outcome.cause for outcome in outcomes if isinstance(outcome, Refused)]
    assert len(won) == 1
    assert lost == ["held"] * 7
    won[0].close()


def test_without_descriptors_for_a_moment_the_host_goes_on_afterwards(world, monkeypatch):
    monkeypatch.setattr(host, "_LOOK_S", 0.01)
    listener, failures = world.host._listener, [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED]

    class Listener:
        def accept(self):
            if failures:
                raise OSError(failures.pop(), "as the test asked")
            return listener.accept()

        def __getattr__(self, name):
            return getattr(listener, name)

    world.host._listener = Listener()
    world.transport().close()
    world.transport().close()
    assert not failures


@pytest.mark.parametrize("good", range(6))
def test_memory_that_cannot_be_registered_is_told_to_the_front_end(world, fabric, good):
    devices = []

    def open_device(*arguments, **options):
        device = fabric.open_device()
        devices.append(device)
        register, made = device.register, []

        def fail(*where, **access):
            if len(made) == good:
                raise TransportError("memory cannot be registered: raise the limit of locked memory")
            made.append(1)
            return register(*where, **access)

        device.register = fail
        return device

    world.host._open = open_device
    with pytest.raises(Refused, match="limit of locked memory") as caught:
        world.transport()
    assert caught.value.cause == "host"
    world.host._open = fabric.open_device
    wait_for(lambda: nobody_is_connected(world), "a session was not forgotten")
    assert fabric.left() == (0, 0, 0)
    world.transport().close()


# --- addresses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 70 + ".example", "..", "\x00"])
def test_a_name_that_is_no_host_s_is_a_clear_error(fabric, name):
    with pytest.raises(TransportLost) as caught:
        VerbsTransport(name, 7471, key=KEY, deadline_s=DEADLINE_S)
    assert is_one_line(caught.value)
    with pytest.raises(TransportError, match="cannot listen on") as caught:
        bind_listener(name, 0)
    assert is_one_line(caught.value)


def test_a_port_in_use_is_a_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(TransportError, match="in use"):
        bind_listener("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "::1", "0.0.0.0", "::", ""])
def test_a_host_listens_at_any_kind_of_address(fabric, name):
    with setup() as world:
        world.host.close()
        world.host = host.RingHost(world.memory, KEY, listener=bind_listener(name, 0))
        towards = {"::1": "::1", "::": "::1"}.get(name, "127.0.0.1")
        VerbsTransport(towards, world.host.port, key=KEY, deadline_s=DEADLINE_S).close()
