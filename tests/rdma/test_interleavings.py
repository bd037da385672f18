"""Reader, submitter and handshake while the scheduler writes between any two words they read.

A batch is torn into pieces in any order, broken off and run again, and the scheduler goes on
between the pieces; the answers must come out whole all the same.
"""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rdma import FrontEndPort, Request, RingFull, ShmTransport
from rdma.faults import Faults, FaultyTransport
from ring import layout as at
from ring.layout import RingGeometry
from ring.memory import RingMemory
from ring.states import EMPTY, Reason, slot_state
from tests.rdma.conftest import MAX_MODEL_LEN, VOCAB
from tests.rdma.peer import AnswerBook, ScriptedScheduler, ring_name

BOUND = settings(max_examples=60, deadline=None)


class Crash(Exception):
    """The front end ends here."""


class World:
    """A ring, a scheduler that goes on at every gap, and a port over a faulty wire."""

    def __init__(self, seed: int, *, hurry: int, **geometry) -> None:
        sizes = {"slots": 32, "arena_tokens": 1 << 15, "log_entries": 64, "flight_entries": 16} | geometry
        self.memory = RingMemory.create(
            ring_name("torn"), RingGeometry(**sizes), max_model_len=MAX_MODEL_LEN, vocab_size=VOCAB
        )
        self.scheduler = ScriptedScheduler(self.memory)
        self.book = AnswerBook(VOCAB)
        self.random = random.Random(seed)
        self.hurry = hurry
        self.crash_after = -1
        self.port = self.attach()

    def attach(self, **options) -> FrontEndPort:
        faults = Faults(choose=self.choose, meanwhile=self.meanwhile, pieces=4)
        shm = ShmTransport.attach(self.memory.path.name.removeprefix("blink-numba-"))
        return FrontEndPort(FaultyTransport(shm, faults), **options)

    def choose(self, n: int) -> int:
        return self.random.randrange(n) if n > 1 and self.random.random() < 0.4 else 0

    def meanwhile(self) -> None:
        if self.crash_after == 0:
            raise Crash
        self.crash_after -= 1
        self.scheduler.go_on(self.random.randrange(self.hurry + 1))

    def submit(self, count: int, longest: int) -> None:
        prompts = [
            np.array([self.random.randrange(VOCAB) for _ in range(self.random.randrange(1, 5))], np.int32)
            for _ in range(count)
        ]
        requests = [
            Request(
                prompt, max_tokens=self.random.randrange(1, longest + 1),
                logprobs=self.random.choice([None, None, 0, 3]),
            )
            for prompt in prompts
        ]  # fmt: skip
        outcomes = self.port.submit_many(requests)
        for prompt, request, handle in zip(prompts, requests, outcomes, strict=True):
            if isinstance(handle, tuple):
                self.book.submitted(handle, prompt, request.logprobs)
            else:
                assert isinstance(handle, RingFull)

    def cancel_one(self) -> None:
        handles = list(self.book.expected)
        if handles:
            self.port.cancel(self.random.choice(handles))

    def finish(self) -> None:
        for _ in range(5000):
            if not self.book.open:
                break
            self.scheduler.go_on(1)
            self.book.take(self.port.poll())
        self.book.check_ends(self.scheduler)
        assert self.port.live() == 0
        assert self.port.counts()["slots_that_lost_log"] == 0
        assert self.port.counts()["protocol_violations"] == 0
        assert not self.scheduler.violations
        self.port.beat()
        view = self.memory.view
        for slot in range(self.memory.geometry.slots):
            assert slot_state(int(view.ctl[slot * at.CTL_WORDS]), int(view.req[slot])) == EMPTY

    def close(self) -> None:
        self.crash_after = -1
        self.port.close(deadline_s=0.0)
        self.memory.close()


steps = st.lists(
    st.tuples(st.sampled_from(["submit", "poll", "poll", "cancel", "sleep"]), st.integers(1, 12)),
    min_size=1,
    max_size=25,
)


@BOUND
@given(
    seed=st.integers(0, 1 << 30), hurry=st.integers(0, 200), steps=steps, log=st.sampled_from([64, 128, 1024])
)
def test_no_token_is_missed_repeated_or_reordered(seed, hurry, steps, log):
    world = World(seed, hurry=hurry, log_entries=log)
    try:
        for action, size in steps:
            if action == "submit":
                world.submit(size, longest=60)
            elif action == "poll":
                world.book.take(world.port.poll())
            elif action == "cancel":
                world.cancel_one()
            else:
                world.scheduler.go_on(size * 20)
        world.finish()
    finally:
        world.close()


def test_a_log_that_comes_round_while_it_is_read():
    """The scheduler laps the reader between the control read and the log read."""
    world = World(1, hurry=0)
    try:
        world.submit(16, longest=60)
        for _ in range(3):
            world.scheduler.turn()
            world.book.take(world.port.poll())
        reads = iter(range(100))
        world.meanwhile = lambda: next(reads) == 4 and world.scheduler.run(10)
        world.port.transport._faults.meanwhile = lambda: world.meanwhile()
        world.scheduler.turn()
        world.book.take(world.port.poll())
        world.meanwhile = lambda: None
        assert world.port.counts()["log_overruns"] == 1
        world.finish()
    finally:
        world.close()


@BOUND
@given(seed=st.integers(0, 1 << 30), crash_after=st.integers(0, 120), before=st.integers(0, 4))
def test_a_successor_finds_every_slot_ended_wherever_its_predecessor_died(seed, crash_after, before):
    world = World(seed, hurry=3)
    try:
        world.submit(before, longest=20)
        world.book.take(world.port.poll())
        world.crash_after = crash_after
        try:
            for _ in range(10):
                world.submit(6, longest=20)
                world.book.take(world.port.poll())
        except Crash:
            pass
        world.crash_after = -1
        world.memory.view.fe_port[at.P_STARTED] = 1  # no process started then: the holder is gone
        dead = world.port
        world.port = world.attach(takeover=True)
        assert not world.scheduler.live
        world.book = AnswerBook(VOCAB)
        world.submit(32, longest=8)
        assert world.book.open == 32
        world.finish()
        assert set(world.book.final.values()) == {Reason.LENGTH}
        dead.transport.close()
    finally:
        world.close()


@BOUND
@given(seed=st.integers(0, 1 << 30), slots=st.lists(st.integers(0, 63), unique=True, min_size=1))
def test_a_burst_writes_every_word_once_and_in_order(seed, slots):
    from rdma.operations import KIND, LOCAL, PUBLISH, REMOTE, WORDS, WRITE
    from rdma.submit import plan_burst

    rng = random.Random(seed)
    burst = np.array([(slot, 100_000 + 100 * slot, 50_000 + 7 * slot, rng.randrange(1, 8)) for slot in slots])
    table = np.zeros((4 * len(slots), 4), np.int64)
    ring_words, staged = np.array([10_000, 5_000, 4_000]), np.array([20_000, 2_000, 1_000])
    rows = table[: plan_burst(table, 0, burst, len(slots), ring_words, staged)]
    written = [
        (row[KIND], row[REMOTE] + k, row[LOCAL] + k) for row in rows.tolist() for k in range(row[WORDS])
    ]
    prompts = [(WRITE, b[1] + k, b[2] + k) for b in burst.tolist() for k in range(b[3])]
    descriptors = [(WRITE, 10_000 + 32 * s + k, 20_000 + 32 * s + k) for s in slots for k in range(32)]
    reqs = [(PUBLISH, 5_000 + s, 2_000 + s) for s in slots]
    assert written[: len(prompts)] == prompts
    assert written[len(prompts) :][: len(descriptors) + len(reqs)] == descriptors + reqs
    bells = written[len(prompts) + len(descriptors) + len(reqs) :]
    assert {(kind, remote - 4_000, local - 1_000) for kind, remote, local in bells} == {
        (PUBLISH, slot // 32, slot // 32) for slot in slots
    }
