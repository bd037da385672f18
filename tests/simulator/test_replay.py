"""A recording is replayed decision for decision; a different policy is told apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphs.step_io import EngineSpec
from ring import layout as at
from ring.python_copy import PythonCopy
from ring.recorder import Entry, Event, entries
from scheduler import state as sc
from scheduler.policies import SHIPPED, find
from scheduler.policy import policy
from scheduler.simulator.replay import Asked, ReplayError, plain_functions, replay, turns_of
from scheduler.view import arrived_ns, prompt_tokens
from tests.scheduler.harness import COPY, EOS, Bench, _turn

OTHER = PythonCopy("replay_tests")
TIGHT = EngineSpec(
    seats=4, decode_batches=(1, 2, 4), prefill_tokens=(16, 64), prefill_sequences=4, block_size=16, blocks=24,
    blocks_per_seat=16, max_model_len=256, vocab_size=512, eos_ids=(EOS,),
)  # fmt: skip


class Recorded(Bench):
    """A bench that records windows as the loops do, and remembers what was asked."""

    def __init__(self, **options) -> None:
        super().__init__(TIGHT, **options)
        self.asked: dict[tuple[int, int], Asked] = {}

    def turn(self) -> int:
        self.now += 1_000
        buffers = self.ring, self.state, self.io, self.table, self.launcher
        verdict = int(_turn(*buffers, *self._policy, 0, 1, self.now))
        if verdict == sc.CLOSE_WINDOW:
            COPY.module("scheduler.loops.cpu").close_window(self.ring, self.state, self.launcher, self.now)
        return verdict

    def ask(self, slot: int, prompt: list[int], count: int, **words: int) -> None:
        incarnation = self.submit(slot, prompt, count, **words)
        self.asked[slot, incarnation] = Asked(
            len(prompt), count, priority=words.get("Q_PRIORITY", 0), tenant=words.get("Q_TENANT", 0),
            deadline_ns=words.get("Q_DEADLINE_NS", 0),
        )  # fmt: skip

    def recording(self) -> list[Entry]:
        return [Entry(e.number, e.time_ns, Event(int(e.event)), e.arguments) for e in
                COPY.module("ring.recorder").entries(self.ring.flight)]  # fmt: skip


def random_run(seed: int, name: str, requests: int = 14) -> Recorded:
    """Requests of all kinds, some cancelled, on a scheduler short of blocks."""
    random, bench = np.random.default_rng(seed), Recorded(policy=name)
    for slot in range(requests):
        prompt = random.integers(3, 500, random.integers(1, 90)).tolist()
        deadline = int(random.integers(50_000, 400_000)) if random.random() < 0.15 else 0
        bench.ask(slot, prompt, int(random.integers(1, 60)), Q_PRIORITY=int(random.integers(0, 3)),
                  Q_TENANT=int(random.integers(0, 3)), Q_DEADLINE_NS=deadline)  # fmt: skip
        for _ in range(int(random.integers(0, 4))):
            bench.turn()
            if random.random() < 0.7:
                bench.engine()
        if random.random() < 0.2:
            bench.cancel(int(random.integers(0, slot + 1)))
    bench.run_until_quiet()
    return bench


@pytest.mark.parametrize("name", list(SHIPPED))
def test_every_shipped_policy_decides_the_same_again_in_plain_python(name: str) -> None:
    for seed in range(3):
        bench = random_run(seed, name)
        found = replay(bench.recording(), bench.asked, TIGHT, bench.geometry, find(name), copy=OTHER)
        assert found is None, f"seed {seed}: {found}"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 30), name=st.sampled_from(sorted(SHIPPED)))
def test_compiled_step_decides_as_plain_python_does(seed: int, name: str) -> None:
    bench = random_run(seed, name)
    assert replay(bench.recording(), bench.asked, TIGHT, bench.geometry, find(name)) is None


def test_another_policy_is_told_apart() -> None:
    bench = random_run(1, "fcfs")
    found = replay(bench.recording(), bench.asked, TIGHT, bench.geometry, find("sjf"), copy=OTHER)
    assert found is not None
    assert "recorded ADMIT" in str(found)


def test_an_altered_recording_is_told_apart() -> None:
    bench = random_run(2, "fcfs")
    recording = bench.recording()
    place = next(i for i, entry in enumerate(recording) if entry.event == Event.ADMIT)
    slot, seat, tokens, blocks = recording[place].arguments
    recording[place] = recording[place]._replace(arguments=(slot, seat ^ 1, tokens, blocks))
    found = replay(recording, bench.asked, TIGHT, bench.geometry, find("fcfs"), copy=OTHER)
    assert found is not None
    assert found.number == recording[place].number


def test_a_policy_defined_here_runs_as_plain_python_and_compiled() -> None:
    @policy
    def shortest_prompt_aged(view, request):
        return arrived_ns(view, request) + 1_000 * prompt_tokens(view, request)

    random, bench = np.random.default_rng(3), Recorded(policy="fcfs")
    bench._policy = plain_functions(shortest_prompt_aged, COPY)
    for slot in range(10):
        bench.ask(slot, random.integers(3, 500, random.integers(1, 90)).tolist(), 20)
        bench.step(int(random.integers(0, 3)))
    bench.run_until_quiet()
    for copy in (OTHER, None):
        found = replay(bench.recording(), bench.asked, TIGHT, bench.geometry, shortest_prompt_aged, copy=copy)
        assert found is None, str(found)
    assert replay(bench.recording(), bench.asked, TIGHT, bench.geometry, find("fcfs"), copy=OTHER) is not None


def test_a_recording_that_begins_late_or_has_gaps_is_refused() -> None:
    bench = random_run(4, "fcfs", requests=3)
    recording = bench.recording()
    with pytest.raises(ReplayError, match="first decision"):
        replay(recording[1:], bench.asked, TIGHT, bench.geometry, find("fcfs"), copy=OTHER)
    with pytest.raises(ReplayError, match="gap before entry"):
        replay(recording[:2] + recording[3:], bench.asked, TIGHT, bench.geometry, find("fcfs"), copy=OTHER)
    with pytest.raises(ReplayError, match="not among those asked"):
        replay(recording, {}, TIGHT, bench.geometry, find("fcfs"), copy=OTHER)


def test_turns_are_told_apart_by_time_and_by_claims() -> None:
    def entry(number: int, time: int, event: Event) -> Entry:
        return Entry(number, time, event, (0, 0, 0, 0))

    made = [
        entry(0, 5, Event.CLAIM),
        entry(1, 5, Event.ADMIT),
        entry(2, 5, Event.CLAIM),
        entry(3, 9, Event.DECODE),
    ]
    assert [[e.number for e in turn] for turn in turns_of(made)] == [[0, 1], [2], [3]]


def test_recorder_of_the_copy_and_of_the_ring_read_the_same() -> None:
    bench = random_run(5, "fcfs", requests=2)
    assert [tuple(e)[:2] for e in entries(bench.ring.flight)] == [tuple(e)[:2] for e in bench.recording()]
    assert bench.ring.descriptor[at.Q_PROMPT_LEN] > 0
