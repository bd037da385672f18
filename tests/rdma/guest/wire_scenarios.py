"""Real verbs against the scripted scheduler; run in the guest, without the compiler."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from rdma import Fenced, FrontEndHeld, FrontEndPort, Request, TransportError, TransportLost
from rdma.operations import READ, Operations
from rdma.verbs import Refused, RingHost, VerbsTransport, wire
from rdma.verbs.provider import WC_REMOTE_ACCESS, OneSided
from ring import layout as at
from ring.layout import RingGeometry
from ring.memory import RingMemory
from ring.states import EMPTY, Reason, slot_state
from tests.rdma.contract import CONTRACT, SIZES, Bench
from tests.rdma.peer import AnswerBook, ScriptedScheduler, ring_name

KEY = "a key of the tests that is long enough"
MAX_MODEL_LEN, VOCAB = 256, 1000


class Setup:
    """A ring, its host, and the scripted scheduler."""

    def __init__(self, **options) -> None:
        sizes = SIZES | {name: options.pop(name) for name in list(options) if name in SIZES}
        self.memory = RingMemory.create(
            ring_name("verbs"), RingGeometry(**sizes), max_model_len=MAX_MODEL_LEN, vocab_size=VOCAB
        )
        self.scheduler = ScriptedScheduler(self.memory)
        self.options = options
        self.host = RingHost(self.memory, KEY, host="127.0.0.1", **options)
        self.book = AnswerBook(VOCAB)

    def transport(self, front_end: int = 0, **options) -> VerbsTransport:
        options = {"provider": self.options.get("provider")} | options
        return VerbsTransport("127.0.0.1", self.host.port, front_end, key=KEY, **options)

    def port(self, front_end: int = 0, *, takeover: bool = False, **options) -> FrontEndPort:
        transport = self.transport(front_end, takeover=takeover, **options)
        try:
            return FrontEndPort(transport, front_end, takeover=takeover)
        except BaseException:
            transport.close()
            raise

    def submit(self, port: FrontEndPort, count: int, max_tokens: int = 8) -> None:
        prompts = [np.array([k + 1, count], np.int32) for k in range(count)]
        logprobs = [None if k % 4 else k % 3 for k in range(count)]
        handles = port.submit_many([
            Request(prompt, max_tokens=max_tokens, logprobs=wanted)
            for prompt, wanted in zip(prompts, logprobs, strict=True)
        ])  # fmt: skip
        for handle, prompt, wanted in zip(handles, prompts, logprobs, strict=True):
            self.book.submitted(handle, prompt, wanted)

    def finish(self, port: FrontEndPort, turns: int = 300) -> None:
        while self.book.open:
            self.scheduler.turn()
            self.book.take(port.poll())
            turns -= 1
            assert turns, f"{self.book.open} requests never ended"
        self.book.check_ends(self.scheduler)

    def wait_for(self, condition, what: str, deadline_s: float = 20.0) -> None:
        give_up = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < give_up, what
            self.scheduler.turn()
            time.sleep(0.02)

    def close(self) -> None:
        self.host.close()
        self.memory.close()


@contextmanager
def setup(**options):
    world = Setup(**options)
    try:
        yield world
    finally:
        world.close()


def contract() -> None:
    for check in CONTRACT:
        with setup() as world, world.transport() as transport:
            check(Bench(world.memory.words, transport))


def posts_of_a_burst_and_of_a_poll() -> None:
    with setup(slots=256) as world:
        port = world.port()
        posts = []
        queue = port.transport._queue
        post = queue.post
        queue.post = lambda *arguments: (posts.append(1), post(*arguments))
        port.transport._queue = queue
        world.submit(port, 64, max_tokens=12)
        assert len(posts) == 1
        for _ in range(6):
            world.scheduler.turn()
            posts.clear()
            world.book.take(port.poll())
            assert 1 <= len(posts) <= 2
        assert sum(map(len, world.book.got.values())) == 6 * 64
        world.finish(port)
        port.close()


def a_front_end_that_goes_quiet_holds_no_slot() -> None:
    with setup() as world:
        port = world.port()
        world.submit(port, 20)
        world.finish(port)  # its last call is the poll that brings the last answer's end
        view = world.memory.view

        def all_empty() -> bool:
            slots = range(world.memory.geometry.slots)
            return all(slot_state(int(view.ctl[2 * s]), int(view.req[s])) == EMPTY for s in slots)

        world.wait_for(all_empty, "slots were not given back")
        assert port.close() == 0


def a_queue_shorter_than_a_burst() -> None:
    with setup() as world:
        port = world.port(depth=4)
        world.submit(port, 20)
        world.finish(port)
        assert port.close() == 0


def the_other_library() -> None:
    """PyPI's ibverbs on both sides, then on the front end's alone."""
    for check in CONTRACT[:4]:
        with setup(provider="ibverbs") as world, world.transport() as transport:
            check(Bench(world.memory.words, transport))
    for provider in ("ibverbs", None):
        with setup(provider=provider) as world:
            port = world.port(provider="ibverbs")
            world.submit(port, 20)
            world.scheduler.turn()
            port.transport.break_off()
            world.book.take(port.poll())
            world.finish(port)
            assert port.transport.counters.reconnects == 1
            assert port.close() == 0


def cancel() -> None:
    with setup() as world:
        port = world.port()
        handle = port.submit(Request(np.array([3], np.int32), max_tokens=200))
        world.book.submitted(handle, np.array([3], np.int32))
        for _ in range(3):
            world.scheduler.turn()
            world.book.take(port.poll())
        assert port.cancel(handle)
        world.finish(port)
        assert world.book.final[handle] == Reason.CANCELLED
        port.close()


def another_key_is_refused_by_both_sides() -> None:
    with setup() as world:
        with pytest.raises(Refused, match="keys differ") as caught:
            VerbsTransport("127.0.0.1", world.host.port, key="another key, also long enough")
        assert caught.value.cause == "key"
        with pytest.raises(TransportError, match="at least 16 bytes"):
            VerbsTransport("127.0.0.1", world.host.port, key="short")
        assert world.host.sessions() == []
        impostor = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=_pretend_to_be_a_host, args=(impostor,), daemon=True).start()
        with pytest.raises(Refused, match="keys differ"):
            VerbsTransport("127.0.0.1", impostor.getsockname()[1], key=KEY)
        impostor.close()


def _pretend_to_be_a_host(listener: socket.socket) -> None:
    peer, _ = listener.accept()
    end = wire.Wire(peer)
    end._send_plain({"protocol": wire.PROTOCOL, "version": wire.VERSION, "nonce": "00"})
    end._receive_plain(time.monotonic() + 5.0)
    end._send_plain({"proof": "made up"})


def another_version_is_refused_by_either_side() -> None:
    with setup() as world:
        old_client = wire.Wire(socket.create_connection(("127.0.0.1", world.host.port)))
        old_client._receive_plain(time.monotonic() + 5.0)
        old_client._send_plain({"version": wire.VERSION + 1, "nonce": "00", "proof": ""})
        assert old_client._receive_plain(time.monotonic() + 5.0)["refused"] == "version"
        other_host = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=_speak_another_version, args=(other_host,), daemon=True).start()
        with pytest.raises(Refused, match="same blink-numba on both hosts") as caught:
            VerbsTransport("127.0.0.1", other_host.getsockname()[1], key=KEY)
        assert caught.value.cause == "version"
        end = wire.Wire.connect("127.0.0.1", world.host.port, KEY.encode(), 5.0)
        with pytest.raises(Refused, match="layout"):
            end.ask({"op": "attach", "front_end": 0, "ring_version": 999}, 5.0)


def _speak_another_version(listener: socket.socket) -> None:
    peer, _ = listener.accept()
    wire.Wire(peer)._send_plain({"protocol": wire.PROTOCOL, "version": 999, "nonce": "00"})


def noise_on_the_port_harms_nobody() -> None:
    with setup() as world:
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\x00\x00\x00\x02{}", b""):
            with socket.create_connection(("127.0.0.1", world.host.port)) as peer:
                peer.sendall(noise)
        port = world.port()
        world.submit(port, 2)
        world.finish(port)
        port.close()


def what_is_not_granted_is_refused_by_the_nic() -> None:
    with setup() as world:
        for read, remote, rkey in _forgeries(world):
            transport = world.transport()
            staging = transport.allocate(64)
            grants = {
                grant.start: grant for grant in [*transport._grants._writable, transport._grants._whole]
            }
            before = world.memory.words.copy()
            address, key = grants[remote[0]].address + 8 * remote[1], grants[rkey].rkey
            transport._queue.post(
                [OneSided(read, staging.ctypes.data, 8, address, key)], transport._region.lkey, 1
            )
            assert _status(transport) == WC_REMOTE_ACCESS
            assert np.array_equal(world.memory.words, before)
            transport.close()
            world.wait_for(lambda: world.host.sessions() == [], "the session went on")


def _forgeries(world: Setup):
    """(read, (grant by its first word, offset in words), key of which grant)."""
    transport = world.transport()
    own = {grant.start: grant for grant in transport._grants._writable}
    whole = transport.ring.words
    transport.close()
    world.wait_for(lambda: world.host.sessions() == [], "the session went on")
    req = world.memory.words[0] * 0 + min(start for start in own if own[start].words == 32)
    yield False, (req, 32), req  # the next front end's words, with the key of our own
    yield False, (0, req), 0  # our own words, with the key for reading
    yield True, (0, whole), 0  # beyond the ring
    yield True, (req, 0), req  # reading what is granted for writing


def _status(transport: VerbsTransport) -> int:
    give_up = time.monotonic() + 10.0
    while time.monotonic() < give_up:
        for _, status in transport._queue.poll():
            return status
    raise AssertionError("no completion")


def a_queue_pair_s_error_loses_nothing() -> None:
    with setup() as world:
        port = world.port()
        world.submit(port, 20, max_tokens=10)
        for turn in range(6):
            world.scheduler.turn()
            if turn % 2:
                port.transport.break_off()
            world.book.take(port.poll())
        world.finish(port)
        assert port.transport.counters.reconnects == 3
        port.transport.break_off()
        world.submit(port, 5)  # the submission itself meets the error
        world.finish(port)
        port.close()


def regions_that_go_before_the_queue_pair_are_no_refusal() -> None:
    """So a process ends: first by a host that lives on, then by one that another host replaces."""
    with setup() as world:
        port = world.port()
        for reconnects in (1, 2):
            world.submit(port, 20)
            world.scheduler.turn()
            world.book.take(port.poll())
            session = world.host._places[0].session
            for region in session.regions:
                region.close()
            session.regions.clear()
            if reconnects == 2:
                number = world.host.port
                thread = threading.Thread(target=lambda: world.book.take(port.poll()))
                thread.start()
                world.host.close()
                world.host = RingHost(world.memory, KEY, host="127.0.0.1", port=number)
                thread.join()
            world.finish(port)
            assert port.transport.counters.reconnects >= reconnects
            world.book = AnswerBook(VOCAB)
        assert port.close() == 0


def an_access_that_a_living_host_refuses_again_is_an_error() -> None:
    with setup() as world, world.transport() as transport:
        transport.allocate(64)
        operation, beyond = transport._operation, 8 * transport.ring.words
        transport._operation = lambda *row: operation(*row)._replace(remote=operation(*row).remote + beyond)
        batch = Operations(1)
        batch.add(READ, 0, 0, 1)
        with pytest.raises(TransportError, match=r"remote access error.*refuses this access again") as caught:
            transport.post(batch)
            transport.complete()
        assert not isinstance(caught.value, TransportLost)
        assert transport.counters.reconnects == 2


def a_lost_connection_loses_nothing() -> None:
    with setup() as world:
        port = world.port()
        world.submit(port, 20, max_tokens=10)
        for _ in range(3):
            world.scheduler.turn()
            world.host.drop(0)
            world.book.take(port.poll())
        world.finish(port)
        assert port.transport.counters.reconnects >= 3
        port.close()


def a_restarted_host_is_found_again() -> None:
    with setup() as world:
        port = world.port()
        world.submit(port, 20, max_tokens=10)
        world.scheduler.turn()
        world.book.take(port.poll())
        number = world.host.port
        world.host.close()
        world.host = RingHost(world.memory, KEY, host="127.0.0.1", port=number)
        world.finish(port)
        assert port.transport.counters.reconnects == 1
        assert port.close() == 0


def a_host_that_stays_away_is_lost() -> None:
    with setup() as world:
        port = FrontEndPort(world.transport(), deadline_s=1.0)
        world.submit(port, 2)
        world.host.close()
        with pytest.raises(TransportLost):
            port.poll()
        with pytest.raises(TransportLost):
            port.poll()
        port.close()


def a_living_front_end_keeps_its_place() -> None:
    with setup() as world:
        port = world.port()
        with pytest.raises(Refused, match="connected") as caught:
            world.port(takeover=True)
        assert caught.value.cause == "held"
        other = world.port(1)  # another place is free
        assert world.host.sessions() == [0, 1]
        other.close()
        port.close()


def who_was_replaced_is_fenced() -> None:
    with setup(grace_s=30.0) as world:
        port = world.port()
        world.submit(port, 4, max_tokens=200)
        world.scheduler.turn()
        world.book.take(port.poll())
        world.host.drop(0)
        world.wait_for(lambda: world.host.sessions() == [], "the session went on")
        with pytest.raises(Refused, match="may come back"):
            world.port()
        attaching: list[FrontEndPort] = []
        thread = threading.Thread(target=lambda: attaching.append(world.port(takeover=True)))
        thread.start()
        world.wait_for(lambda: attaching, "the successor did not get the place")
        thread.join()
        with pytest.raises(Fenced):
            port.poll()
        assert not world.scheduler.live
        world.book = AnswerBook(VOCAB)
        world.submit(attaching[0], 32)
        world.finish(attaching[0])
        attaching[0].close()
        port.close()


def a_killed_front_end_is_buried_and_succeeded() -> None:
    with setup(grace_s=0.5) as world:
        context = multiprocessing.get_context("fork")
        mine, theirs = context.Pipe()
        child = context.Process(target=_live_and_die, args=(world.host.port, theirs))
        child.start()
        world.wait_for(mine.poll, "the front end did not start")
        world.wait_for(lambda: len(world.scheduler.live) == 6, "its requests did not arrive")
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        world.wait_for(lambda: int(world.memory.view.fe_sched[at.D_DRAINED]) == 1, "it was not buried")
        assert not world.scheduler.live
        port = world.port()
        world.submit(port, 32)
        world.finish(port)
        assert set(world.book.final.values()) == {Reason.LENGTH}
        port.close()


def _live_and_die(number: int, pipe) -> None:
    port = FrontEndPort(VerbsTransport("127.0.0.1", number, key=KEY))
    for k in range(6):
        port.submit(Request(np.array([k + 1], np.int32), max_tokens=250))
    pipe.send("submitted")
    while True:
        port.poll()


def a_closed_port_s_place_is_free_at_once() -> None:
    with setup(grace_s=30.0) as world:
        for _ in range(3):
            port = world.port()
            world.submit(port, 3)
            world.finish(port)
            assert port.close() == 0
            assert world.host.sessions() == []
            world.book = AnswerBook(VOCAB)


def a_place_held_on_the_ring_s_own_host_is_respected() -> None:
    from rdma import ShmTransport

    with setup() as world:
        local = FrontEndPort(ShmTransport.attach(world.memory.path.name.removeprefix("blink-numba-")))
        with pytest.raises(FrontEndHeld, match="process"):
            world.port(takeover=True)
        local.close()
        port = world.port()
        world.submit(port, 2)
        world.finish(port)
        port.close()


SCENARIOS = [
    contract,
    posts_of_a_burst_and_of_a_poll,
    a_front_end_that_goes_quiet_holds_no_slot,
    a_queue_shorter_than_a_burst,
    the_other_library,
    cancel,
    another_key_is_refused_by_both_sides,
    another_version_is_refused_by_either_side,
    noise_on_the_port_harms_nobody,
    what_is_not_granted_is_refused_by_the_nic,
    a_queue_pair_s_error_loses_nothing,
    regions_that_go_before_the_queue_pair_are_no_refusal,
    an_access_that_a_living_host_refuses_again_is_an_error,
    a_lost_connection_loses_nothing,
    a_restarted_host_is_found_again,
    a_host_that_stays_away_is_lost,
    a_living_front_end_keeps_its_place,
    who_was_replaced_is_fenced,
    a_killed_front_end_is_buried_and_succeeded,
    a_closed_port_s_place_is_free_at_once,
    a_place_held_on_the_ring_s_own_host_is_respected,
]
