"""Decode steps launched ahead: the answers of the plain scheduler, nothing lost, nothing let go too early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphs.step_io import SAMPLING_WORDS, SUPPRESS_EOS
from ring import layout as at
from ring.recorder import Event, entries
from ring.states import Reason, State
from scheduler import state as sc
from scheduler.recovery import abandon
from tests.scheduler.harness import EOS, SMALL, Bench, expected, pairs_of

TIGHT = replace(SMALL, blocks=20)  # hardly more than one request may need


@pytest.fixture
def bench() -> Bench:
    return Bench(pipelined=True)


def decode_numbers(bench: Bench) -> list[int]:
    """Numbers of the decode steps, as the flight recorder has them."""
    return [entry.arguments[0] for entry in entries(bench.ring.flight) if entry.event == Event.DECODE]


def test_a_step_is_launched_behind_the_one_in_flight(bench: Bench) -> None:
    bench.submit(0, [5, 6, 7], 10)
    bench.turn()
    bench.engine()  # the prefill
    bench.turn()
    core = bench.state.core
    assert (core[sc.K_STEP], core[sc.K_AHEAD], core[sc.K_LAUNCHES]) == (2, 1, 3)
    bench.turn()
    assert core[sc.K_LAUNCHES] == 3, "at most one is ahead"
    bench.engine()
    bench.turn()
    assert (core[sc.K_STEP], core[sc.K_AHEAD], core[sc.K_LAUNCHES]) == (3, 1, 4)
    bench.run_until_quiet()
    assert bench.answer(0).tokens == expected([5, 6, 7], 10)
    assert decode_numbers(bench) == list(range(2, 11)), "no step beyond the known end, none left out"
    bench.check_nothing_held()


def test_both_steps_may_be_over_before_the_scheduler_looks(bench: Bench) -> None:
    bench.submit(0, [5, 6, 7], 30)
    for _ in range(40):
        bench.turn()
        bench.engine()
        bench.engine()
    bench.run_until_quiet()
    assert bench.answer(0).tokens == expected([5, 6, 7], 30)


def test_a_stop_token_is_published_at_once_and_its_end_after_the_step_behind(bench: Bench) -> None:
    first = expected([5, 6], 3)
    bench.eos_after[(5, 6, *first)] = EOS
    bench.submit(0, [5, 6], 8)
    bench.submit(1, [9], 20)
    bench.turn()
    while len(bench.answer(0).tokens) < 4:
        bench.engine()
        bench.turn()
    answer, blocks = bench.answer(0), bench.state.core[sc.K_BLOCKS_FREE]
    assert (answer.state, answer.tokens) == (State.DECODE_PROCESSING, [*first, EOS])
    assert bench.state.core[sc.K_AHEAD] == 0, "none goes ahead of who leaves"
    bench.turn()
    assert bench.answer(0) == answer
    assert bench.state.core[sc.K_BLOCKS_FREE] == blocks
    bench.engine()
    bench.turn()
    assert (bench.answer(0).state, bench.answer(0).reason) == (State.DECODE_COMPLETED, Reason.STOP)
    assert bench.answer(0).tokens == [*first, EOS]
    assert bench.state.core[sc.K_BLOCKS_FREE] == blocks + 1
    bench.run_until_quiet()
    assert bench.answer(1).tokens == expected([9], 20)
    bench.check_nothing_held()


def test_ends_are_told_to_the_engine_before_the_step_that_may_end(bench: Bench) -> None:
    """EOS is suppressed for as many tokens as were asked for, and for no more."""
    suppressed = []
    sample = bench._sample

    def watched(seat: int) -> None:
        suppressed.append(int(bench.io.sampling[seat * SAMPLING_WORDS + SUPPRESS_EOS]))
        sample(seat)

    bench._sample = watched  # type: ignore[method-assign]
    bench.submit(0, [5, 6], 9, Q_MIN_TOKENS=4)
    bench.run_until_quiet()
    assert suppressed == [1, 1, 1, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "step behind"])
def test_a_fault_ends_the_batch_once(bench: Bench, behind: bool) -> None:
    """Also when the step behind ran well before the scheduler saw the fault."""
    for slot in range(3):
        bench.submit(slot, [5 + slot], 20)
    bench.step(6)
    got = [bench.answer(slot).tokens for slot in range(3)]
    assert bench.state.core[sc.K_AHEAD] == 1
    bench.engine()
    bench.turn()
    bench.fault = 3
    bench.engine()
    bench.fault = 0
    if behind:
        bench.engine()
    bench.run_until_quiet()
    faults = [entry.arguments for entry in entries(bench.ring.flight) if entry.event == Event.FAULT]
    assert [fault[:2] for fault in faults] == [(sc.ERROR_ENGINE, 3)]
    for slot in range(3):
        answer = bench.answer(slot)
        assert (answer.state, answer.reason) == (State.DECODE_COMPLETED, Reason.ERROR)
        assert answer.tokens[: len(got[slot])] == got[slot]
        assert answer.tokens == expected([5 + slot], len(answer.tokens))
    bench.check_nothing_held()


def test_restart_with_a_step_ahead_and_one_that_had_ended(bench: Bench) -> None:
    """What was given up counts as over; who had ended keeps the reason, the others end with an error."""
    first = expected([5, 6], 3)
    bench.eos_after[(5, 6, *first)] = EOS
    bench.submit(0, [5, 6], 8)
    bench.submit(1, [9], 20)
    while len(bench.answer(0).tokens) < 4:
        bench.turn()
        bench.engine()
    assert bench.answer(0).state == State.DECODE_PROCESSING
    while bench.engine():
        pass
    abandon.py_func(bench.state, bench.io)
    bench.submit(2, [7, 7], 12)
    bench.run_until_quiet()
    assert (bench.answer(0).reason, bench.answer(0).tokens) == (Reason.STOP, [*first, EOS])
    assert bench.answer(1).reason == Reason.ERROR
    assert bench.answer(2).tokens == expected([7, 7], 12)
    bench.check_nothing_held()


def test_restart_gives_up_both_steps(bench: Bench) -> None:
    bench.submit(0, [5, 6], 30)
    bench.step(4)
    bench.turn()
    assert bench.state.core[sc.K_AHEAD] == 1
    bench.now += int(2e9)
    assert bench.turn() == sc.FAULTED
    while bench.engine():
        pass
    abandon.py_func(bench.state, bench.io)
    bench.submit(1, [7, 7], 12)
    bench.run_until_quiet()
    assert bench.answer(0).reason == Reason.ERROR
    assert bench.answer(1).tokens == expected([7, 7], 12)
    numbers = [entry.arguments[0] for entry in entries(bench.ring.flight)
               if entry.event in (Event.PREFILL, Event.DECODE)]  # fmt: skip
    assert numbers == sorted(set(numbers)), "no number twice"
    core = bench.state.core
    assert core[sc.K_LAUNCHES] == core[sc.K_STEP] == numbers[-1], "each launch has one"


def test_the_step_behind_gets_its_own_deadline(bench: Bench) -> None:
    """A step is late when it runs for too long, not when it waited for the one before it."""
    bench.submit(0, [5, 6], 30)
    bench.step(3)
    for _ in range(8):
        bench.now += int(0.7e9)  # of a deadline of a second
        bench.engine()
        assert bench.turn() != sc.FAULTED


def test_park_is_heeded_with_nothing_in_flight(bench: Bench) -> None:
    bench.submit(0, [5, 6], 30)
    bench.step(4)
    bench.ring.command[at.C_PARK] = 1
    launches, verdicts = int(bench.state.core[sc.K_LAUNCHES]), []
    for _ in range(4):
        bench.engine()
        verdicts.append(bench.turn())
    assert verdicts[-1] == sc.PARKED
    assert bench.state.core[sc.K_LAUNCHES] == launches
    assert bench.state.core[sc.K_IN_FLIGHT] == sc.NOTHING
    bench.ring.command[at.C_PARK] = 0
    bench.run_until_quiet()
    assert bench.answer(0).tokens == expected([5, 6], 30)


def scenario(bench: Bench, seed: int) -> dict[int, tuple]:
    """Random requests in a small cache; engine and scheduler take turns at random. Returns what was asked."""
    random = np.random.default_rng(seed)
    asked = {}
    for slot in range(0, 48, 2):  # the other slots' arena takes the log-probabilities
        prompt = random.integers(3, 500, random.integers(1, 120)).tolist()
        count, pairs = int(random.integers(1, 100)), int(random.choice([0, 1, 2]))
        tokens = expected(prompt, count)
        stops = bool(random.integers(0, 2))  # the first token of a kind ends the answer
        stop = int(random.choice(tokens))
        least = int(random.integers(0, count)) if slot % 3 == 0 else 0
        bench.submit(slot, prompt, count, Q_LOGPROBS=pairs, Q_LOGPROBS_START=(slot + 1) * bench.share,
                     Q_MIN_TOKENS=least, Q_STOP_COUNT=int(stops), Q_STOP_0=stop)  # fmt: skip
        asked[slot] = (prompt, tokens, pairs, stop if stops else None, least)
        _advance(bench, random, int(random.integers(0, 12)))
    while bench.state.core[sc.K_FINISHED] < len(asked) - 2:
        _advance(bench, random, 20)
    bench.run_until_quiet()
    return asked


def _advance(bench: Bench, random: np.random.Generator, times: int) -> None:
    for _ in range(times):
        bench.turn()
        for _ in range(random.integers(0, 3)):
            bench.engine()


def whole_answer(tokens: list[int], stop: int | None, least: int) -> tuple[list[int], Reason]:
    """What a request must get."""
    for k, token in enumerate(tokens):
        if token == stop and k + 1 >= least:
            return tokens[: k + 1], Reason.STOP
    return tokens, Reason.LENGTH


@pytest.mark.parametrize("policy", ["fcfs", "srpt"])
@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_every_other_strategy(seed: int, policy: str) -> None:
    bench = Bench(TIGHT, policy=policy, pipelined=True)
    for slot, (prompt, tokens, pairs, stop, least) in scenario(bench, seed).items():
        tokens, reason = whole_answer(tokens, stop, least)
        answer = bench.answer(slot)
        assert (answer.state, answer.reason) == (State.DECODE_COMPLETED, reason), slot
        assert answer.tokens == tokens, slot
        if pairs:
            records = [pairs_of(prompt + tokens[:k], pairs) for k in range(len(tokens))]
            assert bench.records(slot) == records
        after = bench.ring.tokens[
            (slot + 1) * bench.share + 2 * pairs * len(tokens) : (slot + 2) * bench.share
        ]
        assert not after.any(), "written beyond the answer"
    core = bench.state.core
    assert core[sc.K_PREEMPTIONS] > 0, "20 blocks are too few for this load"
    assert core[sc.K_DECODES] > 100
    bench.check_nothing_held()


@pytest.mark.parametrize("seed", range(4))
def test_cancels_and_deadlines_leave_nothing_behind(seed: int) -> None:
    """What ends early has a part of its answer and its true reason; the others have all of theirs."""
    bench, random = Bench(TIGHT, pipelined=True), np.random.default_rng(seed)
    asked, cancelled, late = {}, set(), set()
    for slot in range(24):
        prompt, count = random.integers(3, 500, random.integers(1, 60)).tolist(), int(random.integers(2, 90))
        late |= {slot} if slot % 5 == 4 else set()
        deadline = 40_000 if slot in late else at.NO_DEADLINE  # forty turns
        bench.submit(slot, prompt, count, Q_DEADLINE_NS=deadline)
        asked[slot] = expected(prompt, count)
        _advance(bench, random, int(random.integers(0, 9)))
        if slot % 4 == 3:
            victim = int(random.integers(0, slot + 1))
            if bench.answer(victim).state != State.DECODE_COMPLETED:
                bench.cancel(victim)
                cancelled.add(victim)
    bench.run_until_quiet()
    for slot, tokens in asked.items():
        answer = bench.answer(slot)
        assert answer.state == State.DECODE_COMPLETED
        assert answer.tokens == tokens[: len(answer.tokens)]
        if answer.reason == Reason.LENGTH:
            assert answer.tokens == tokens
        else:
            assert slot in (cancelled if answer.reason == Reason.CANCELLED else late), (slot, answer.reason)
    reasons = {bench.answer(slot).reason for slot in asked}
    assert reasons >= {Reason.LENGTH, Reason.CANCELLED, Reason.DEADLINE}
    bench.check_nothing_held()


def test_decisions_are_the_plain_schedulers_while_no_stop_token_ends_a_request() -> None:
    """All requests there before the first turn, ends by length: the same entries, in the same order."""
    found = []
    for pipelined in (False, True):
        bench, random = Bench(TIGHT, pipelined=pipelined), np.random.default_rng(11)
        for slot in range(12):
            prompt = random.integers(3, 500, random.integers(1, 120)).tolist()
            bench.submit(slot, prompt, int(random.integers(1, 100)))
        bench.run_until_quiet()
        found.append([(entry.event, entry.arguments) for entry in entries(bench.ring.flight)])
    assert found[0] == found[1]
    assert any(event == Event.PREEMPT for event, _ in found[0])
