"""Real requests end to end over verbs: engine and front end as separate processes, in the guest.

The processes are forked from this one, which has imported everything and started nothing, so
each is there in a moment even under emulation. They talk to the test through pipes.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from multiprocessing.connection import Connection

import numpy as np

# loaded while others compile, for the HTTP front ends that are forked later
import uvicorn.lifespan.on
import uvicorn.loops.uvloop
import uvicorn.protocols.http.httptools_impl  # noqa: F401

from blink_numba.frontend.settings import FrontEndSettings
from blink_numba.remote import VerbsConnector, run_front_end
from blink_numba.runtime import EngineConfig, LocalEngine
from blink_numba.runtime.local import make_backend
from rdma import Event, FrontEndPort, Handle, Request, ShmTransport
from rdma.verbs import RingHost
from ring import layout as at
from ring.layout import RingGeometry
from ring.memory import RingMemory
from ring.states import Reason
from ring.words import ctl_reason
from tests.rdma.peer import ring_name

KEY = "a key of the tests that is long enough"
SEATS = 2
HTTP_PLACE = 1  # of the ring's two front ends
DEADLINE_S = 150.0
GRACE_S = 30.0  # for a front end to come back: this machine may have little time for the guest
_CONTEXT = multiprocessing.get_context("fork")


class Remote:
    """A child process and the pipe to it."""

    def __init__(self, target, *arguments) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=target, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, *request):
        self.pipe.send(request)
        assert self.pipe.poll(DEADLINE_S), f"no answer to {request[0]!r}"
        return self.pipe.recv()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def end(self) -> None:
        self.ask("end")
        self.process.join(DEADLINE_S)
        assert self.process.exitcode == 0


CONFIG = EngineConfig(
    model="tiny", backend="cpu", ring_name=ring_name("served"), slots=64, front_ends=2, max_seats=SEATS,
    max_model_len=128, threads=1,
)  # fmt: skip


def load_compiled_code() -> None:
    """Have all compiled code in this process, so that no child has to fetch it again."""
    make_backend(CONFIG, print).close()
    importlib.import_module("blink_numba.frontend.app")  # with the tokenizer's kernels
    importlib.import_module("blink_numba.vocabularies").load_tokenizer("tiny").encode("Hello")
    memory = RingMemory.create(ring_name("warm"), RingGeometry(slots=32), max_model_len=128, vocab_size=256)
    with FrontEndPort(ShmTransport(memory)) as port:
        port.warm_up()


# --- the engine's process ------------------------------------------------------------------------


def engine_process(pipe: Connection, number: int, attach: bool) -> None:
    with (
        LocalEngine(CONFIG, attach=attach) as engine,
        RingHost(
            engine.ring, KEY, host="127.0.0.1", port=number, grace_s=GRACE_S, about={"model": "tiny"}
        ) as host,
    ):
        pipe.send(host.port)
        pipe.recv()  # "end"
    pipe.send("ended")


def start_engine(number: int = 0, *, attach: bool = False) -> tuple[Remote, int]:
    engine = Remote(engine_process, number, attach)
    assert engine.pipe.poll(DEADLINE_S), "the engine did not start"
    return engine, engine.pipe.recv()


# --- the front end's process -----------------------------------------------------------------------


def front_end_process(pipe: Connection, number: int) -> None:
    connector = VerbsConnector("127.0.0.1", number, key=KEY, reconnect_s=DEADLINE_S)
    assert connector.model() == "tiny"
    port = connector.connect()
    pipe.send("attached")
    events: dict[Handle, list[Event]] = {}
    while True:
        for event in port.poll():
            events.setdefault(event.handle, []).append(event)
        if pipe.poll(port.idle_interval()):
            name, *arguments = pipe.recv()
            if name == "end":
                pipe.send(port.close())
                return
            if name == "submit":
                pipe.send([port.submit(request) for request in arguments[0]])
            elif name == "cancel":
                pipe.send(port.cancel(arguments[0]))
            elif name == "news":
                pipe.send((events, port.counts(), port.live()))


def start_front_end(number: int) -> Remote:
    front_end = Remote(front_end_process, number)
    assert front_end.pipe.poll(DEADLINE_S), "the front end did not attach"
    assert front_end.pipe.recv() == "attached"
    return front_end


def wait_until(front_end: Remote, condition, what: str) -> dict[Handle, list[Event]]:
    """The events so far, once they fulfil a condition."""
    give_up = time.monotonic() + DEADLINE_S
    while True:
        events, _, _ = front_end.ask("news")
        if condition(events):
            return events
        assert time.monotonic() < give_up, f"{what}: {events}"
        time.sleep(0.05)


def all_ended(handles):
    return lambda events: all(handle in events and events[handle][-1].reason for handle in handles)


def answer(events: list[Event]) -> list[int]:
    """The tokens of a request, after checking that it ended once and adds up."""
    assert [bool(event.reason) for event in events] == [False] * (len(events) - 1) + [True]
    tokens = [token for event in events for token in event.tokens.tolist()]
    assert events[-1].usage == len(tokens)
    return tokens


def request(first: int, max_tokens: int) -> Request:
    return Request(np.arange(first, first + 5, dtype=np.int32), max_tokens=max_tokens, ignore_eos=True)


# --- an HTTP front end's process -------------------------------------------------------------------


def http_process(pipe: Connection, number: int) -> None:
    settings = FrontEndSettings(
        "", (), "", HTTP_PLACE, port=0, heartbeat_timeout_s=GRACE_S, first_engine_s=GRACE_S, access_log=False
    )
    connector = VerbsConnector("127.0.0.1", number, HTTP_PLACE, key=KEY, reconnect_s=DEADLINE_S)
    sys.exit(run_front_end(settings, connector, pipe.send))


class Http(Remote):
    """An HTTP front end, and requests to it."""

    def __init__(self, number: int) -> None:
        super().__init__(http_process, number)
        assert self.pipe.poll(DEADLINE_S), "the HTTP front end does not serve"
        self.port = self.pipe.recv()

    @contextmanager
    def request(self, max_tokens: int, *, stream: bool) -> Iterator[HTTPResponse]:
        """A completion; the connection is closed with the block, whatever was read of it."""
        body = {
            "model": "tiny",
            "prompt": "Hello",
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)) as connection:
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body | {"stream": stream}), headers)
            with connection.getresponse() as response:
                assert response.status == 200, response.read()
                yield response

    def wait_healthy(self) -> None:
        give_up = time.monotonic() + DEADLINE_S
        while True:
            with closing(HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)) as connection:
                connection.request("GET", "/health")
                with connection.getresponse() as response:
                    if response.status == 200:
                        return
                    assert time.monotonic() < give_up, response.read()
            time.sleep(0.1)

    def answer(self, max_tokens: int) -> str:
        self.wait_healthy()
        with self.request(max_tokens, stream=False) as response:
            return json.load(response)["choices"][0]["text"]


def events(response: HTTPResponse) -> Iterator[dict]:
    """What a stream brings, up to its end."""
    for line in response:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])
        elif line == b"data: [DONE]\n":
            return


# --- scenarios: one world for all, since an engine takes its time to start -------------------------


class World:
    engine: Remote
    front_end: Remote
    http: Http
    text: str
    number = 0
    alone: dict[int, list[int]]


def requests_are_served_and_streamed() -> None:
    load_compiled_code()
    World.engine, World.number = start_engine()
    World.front_end = start_front_end(World.number)
    World.alone = {}
    for first in (10, 60):
        (handle,) = World.front_end.ask("submit", [request(first, 12)])
        events = wait_until(World.front_end, all_ended([handle]), "one request")[handle]
        World.alone[first] = answer(events)
        assert len(World.alone[first]) == 12
        assert events[-1].reason == Reason.LENGTH
    (handle,) = World.front_end.ask("submit", [request(30, 110)])
    events = wait_until(World.front_end, all_ended([handle]), "a long request")[handle]
    assert len(answer(events)) == 110
    assert len(events) > 2, "the answer came in one piece"


def answers_together_are_those_alone() -> None:
    firsts = [10, 60] * 3
    handles = World.front_end.ask("submit", [request(first, 12) for first in firsts])
    events = wait_until(World.front_end, all_ended(handles), "six requests")
    for handle, first in zip(handles, firsts, strict=True):
        assert answer(events[handle]) == World.alone[first]


def a_cancel_ends_a_request() -> None:
    (handle,) = World.front_end.ask("submit", [request(30, 110)])
    wait_until(World.front_end, lambda events: handle in events, "the first token")
    assert World.front_end.ask("cancel", handle)
    events = wait_until(World.front_end, all_ended([handle]), "the cancelled request")[handle]
    assert events[-1].reason == Reason.CANCELLED
    assert len(answer(events)) < 110


def http_is_streamed_and_a_hang_up_cancels() -> None:
    World.http = Http(World.number)
    World.text = World.http.answer(40)
    with World.http.request(40, stream=True) as response:
        pieces = [event["choices"][0]["text"] for event in events(response)]
    assert "".join(pieces) == World.text
    assert len(pieces) > 2, "the answer came in one piece"
    with World.http.request(110, stream=True) as response:
        next(events(response))
    with RingMemory.attach(CONFIG.ring_name) as ring:
        share = ring.geometry.slots_per_front_end
        first = HTTP_PLACE * share
        give_up = time.monotonic() + DEADLINE_S
        while True:
            words = ring.view.ctl[:: at.CTL_WORDS][first : first + share].tolist()
            if Reason.CANCELLED in map(ctl_reason, words):
                return
            assert time.monotonic() < give_up, "a client hung up, and its request was not cancelled"
            time.sleep(0.02)


def an_http_front_end_dies_and_another_takes_its_place() -> None:
    with World.http.request(110, stream=True) as response:
        next(events(response))
        World.http.kill()
        with suppress(OSError, IncompleteRead):
            assert len(list(events(response))) < 110
    World.http = Http(World.number)
    assert World.http.answer(40) == World.text


def a_front_end_dies_and_another_takes_its_place() -> None:
    (handle,) = World.front_end.ask("submit", [request(30, 110)])
    wait_until(World.front_end, lambda events: handle in events, "the first token")
    World.front_end.kill()
    World.front_end = start_front_end(World.number)
    handles = World.front_end.ask("submit", [request(first, 12) for first in (10, 60)])
    events = wait_until(World.front_end, all_ended(handles), "requests after the death")
    assert [answer(events[handle]) for handle in handles] == [World.alone[10], World.alone[60]]


def an_engine_dies_and_another_goes_on_with_its_ring() -> None:
    firsts = [30] * SEATS + [10, 60, 10, 60]  # the long ones take the seats, the rest is queued
    lengths = [110] * SEATS + [12] * 4
    handles = World.front_end.ask("submit", [request(*one) for one in zip(firsts, lengths, strict=True)])
    long, queued = handles[:SEATS], handles[SEATS:]
    wait_until(World.front_end, lambda events: all(handle in events for handle in long), "first tokens")
    World.engine.kill()
    World.engine, _ = start_engine(World.number, attach=True)
    found = wait_until(World.front_end, all_ended(handles), "requests after the engine's death")
    for handle in long:
        assert found[handle][-1].reason == Reason.ERROR
        answer(found[handle])
    for handle, first in zip(queued, firsts[SEATS:], strict=True):
        assert found[handle][-1].reason == Reason.LENGTH
        assert answer(found[handle]) == World.alone[first]
    assert World.http.answer(40) == World.text
    _, counts, live = World.front_end.ask("news")
    assert counts["reconnects"] >= 1
    assert live == 0


def everything_ends_in_order() -> None:
    World.front_end.end()
    World.http.process.terminate()
    World.http.process.join(DEADLINE_S)
    assert World.http.process.exitcode == 0
    World.engine.end()


SCENARIOS = [
    requests_are_served_and_streamed,
    answers_together_are_those_alone,
    a_cancel_ends_a_request,
    http_is_streamed_and_a_hang_up_cancels,
    an_http_front_end_dies_and_another_takes_its_place,
    a_front_end_dies_and_another_takes_its_place,
    an_engine_dies_and_another_goes_on_with_its_ring,
    everything_ends_in_order,
]
