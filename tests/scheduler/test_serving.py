"""Requests through the step: answers, reasons, order, windows, nothing left over."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.launcher import WINDOW
from ring import layout as at
from ring.recorder import Event, entries
from ring.states import Reason, State
from ring.words import CANCEL, log_slot, log_token
from scheduler import state as sc
from tests.scheduler.harness import EOS, Bench, expected, pairs_of


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_one_request_is_answered(bench: Bench) -> None:
    bench.submit(0, [5, 6, 7], 10)
    bench.run_until_quiet()
    answer = bench.answer(0)
    assert (answer.state, answer.reason) == (State.DECODE_COMPLETED, Reason.LENGTH)
    assert answer.tokens == expected([5, 6, 7], 10)
    bench.check_nothing_held()


def test_one_token_answers_never_decode(bench: Bench) -> None:
    bench.submit(0, [5], 1)
    bench.run_until_quiet()
    assert bench.answer(0).tokens == expected([5], 1)
    assert bench.state.core[sc.K_DECODES] == 0


def test_many_requests_of_all_lengths_are_answered_as_if_alone(bench: Bench) -> None:
    random = np.random.default_rng(5)
    asked = {}
    for slot in range(64):
        prompt = random.integers(3, 500, random.integers(1, 150)).tolist()
        count = int(random.integers(1, 257 - len(prompt)))
        bench.submit(slot, prompt, count)
        asked[slot] = (prompt, count)
        if slot % 7 == 0:
            bench.step(3)
    bench.run_until_quiet()
    for slot, (prompt, count) in asked.items():
        assert bench.answer(slot).tokens == expected(prompt, count), slot
    assert bench.state.core[sc.K_PREEMPTIONS] > 0, "40 blocks are too few for this load"
    bench.check_nothing_held()


def test_log_probabilities_follow_their_tokens(bench: Bench) -> None:
    """Those that were asked for, through preemption, and never those of another step or seat."""
    random = np.random.default_rng(6)
    asked = {}
    for slot in range(0, 64, 2):  # the other slots' arena takes the log-probabilities
        prompt = random.integers(3, 500, random.integers(1, 150)).tolist()
        count, pairs = int(random.integers(1, 100)), int(random.choice([0, 1, 2]))
        bench.submit(slot, prompt, count, Q_LOGPROBS=pairs, Q_LOGPROBS_START=(slot + 1) * bench.share)
        asked[slot] = (prompt, count, pairs)
    bench.run_until_quiet()
    for slot, (prompt, count, pairs) in asked.items():
        tokens = expected(prompt, count)
        assert bench.answer(slot).tokens == tokens, slot
        if pairs:
            assert bench.records(slot) == [pairs_of(prompt + tokens[:k], pairs) for k in range(count)]
        after = bench.ring.tokens[(slot + 1) * bench.share + 2 * pairs * count : (slot + 2) * bench.share]
        assert not after.any(), "written beyond the answer"
    assert bench.state.core[sc.K_PREEMPTIONS] > 0, "40 blocks are too few for this load"
    bench.check_nothing_held()


def test_slots_are_used_again(bench: Bench) -> None:
    for round_ in range(1, 6):
        incarnation = bench.submit(3, [round_ + 3], 4)
        bench.run_until_quiet()
        answer = bench.answer(3)
        assert answer.incarnation == incarnation == round_
        assert answer.tokens == expected([round_ + 3], 4)
        bench.release(3)
    assert bench.state.core[sc.K_CLAIMS] == 5


def test_a_doorbell_without_a_new_request_claims_nothing(bench: Bench) -> None:
    bench.ring.doorbell[0] ^= 1 << 9
    bench.step(5)
    assert bench.state.core[sc.K_CLAIMS] == 0
    assert bench.answer(9).state == State.EMPTY


@pytest.mark.parametrize("ignore", [False, True])
def test_end_of_sequence(bench: Bench, ignore: bool) -> None:
    first = expected([5, 6], 3)
    bench.eos_after[(5, 6, *first)] = EOS
    bench.submit(0, [5, 6], 8, Q_FLAGS=at.FLAG_IGNORE_EOS if ignore else 0)
    bench.run_until_quiet()
    answer = bench.answer(0)
    if ignore:
        assert answer.reason == Reason.LENGTH
        assert len(answer.tokens) == 8
    else:
        assert answer.reason == Reason.STOP
        assert answer.tokens == [*first, EOS]


def test_min_tokens_keeps_eos_from_ending_and_asks_the_engine_to_suppress_it(bench: Bench) -> None:
    first = expected([5, 6], 1)
    bench.eos_after[(5, 6, *first)] = EOS
    bench.submit(0, [5, 6], 8, Q_MIN_TOKENS=4)
    bench.run_until_quiet()
    answer = bench.answer(0)
    assert len(answer.tokens) >= 4
    assert answer.reason == Reason.LENGTH


def test_stop_ids(bench: Bench) -> None:
    answer = expected([9], 6)
    bench.submit(0, [9], 20, Q_STOP_COUNT=2, Q_STOP_0=1)
    bench.ring.descriptor[at.Q_STOP_0 + 1] = answer[3]
    bench.run_until_quiet()
    got = bench.answer(0)
    assert got.reason == Reason.STOP
    assert got.tokens == answer[: answer.index(answer[3]) + 1]


def test_first_come_first_served(bench: Bench) -> None:
    for slot in (40, 7, 22, 3, 50, 11):
        bench.submit(slot, [slot + 3] * 20, 30)
        bench.turn()
    bench.run_until_quiet()
    seen = [entry.arguments[0] for entry in entries(bench.ring.flight) if entry.event == Event.ADMIT]
    assert seen == [40, 7, 22, 3, 50, 11]


def test_requests_of_one_turn_get_tickets_in_slot_order(bench: Bench) -> None:
    for slot in (40, 7, 22):
        bench.submit(slot, [5], 2)
    bench.step()
    claims = [entry.arguments for entry in entries(bench.ring.flight) if entry.event == Event.CLAIM]
    assert [(slot, ticket) for slot, _, ticket, _ in claims] == [(7, 0), (22, 1), (40, 2)]


def test_an_inline_prefill_pauses_the_decode_and_resumes_it(bench: Bench) -> None:
    bench.submit(0, [5, 6], 30)
    bench.step(5)
    bench.submit(1, [7] * 20, 5)
    bench.turn()  # claims, admits, launches the prefill
    assert bench.answer(0).state == State.DECODE_PAUSED
    assert bench.answer(1).state == State.PREFILL_PROCESSING
    bench.engine()
    bench.turn()
    assert bench.answer(0).state == State.DECODE_PROCESSING
    assert bench.answer(1).state == State.DECODE_PROCESSING
    bench.run_until_quiet()
    assert bench.answer(0).tokens == expected([5, 6], 30)
    assert bench.answer(1).tokens == expected([7] * 20, 5)


def test_a_prompt_longer_than_the_largest_prefill_goes_in_chunks(bench: Bench) -> None:
    prompt = list(range(3, 203))
    bench.submit(0, prompt, 5)
    bench.run_until_quiet()
    assert bench.state.core[sc.K_PREFILLS] == 4  # 64 + 64 + 64 + 8
    assert bench.answer(0).tokens == expected(prompt, 5)


def test_windows_close_at_120_launches_and_lose_nothing(bench: Bench) -> None:
    bench.submit(0, [5], 250)
    bench.run_until_quiet()
    assert bench.answer(0).tokens == expected([5], 250)
    assert bench.state.core[sc.K_LAUNCHES] == 250
    assert bench.state.core[sc.K_WINDOWS] == 2
    assert bench.state.core[sc.K_RETRIES] == 0
    assert bench.state.core[sc.K_WINDOW] == 250 - 2 * WINDOW


def test_a_prefill_needs_room_for_the_decode_that_resumes(bench: Bench) -> None:
    bench.submit(0, [5], 200)
    bench.step(WINDOW - 1)  # one launch is left in the window
    bench.submit(1, [6], 2)
    bench.run_until_quiet()
    launches = [e for e in entries(bench.ring.flight) if e.event in (Event.PREFILL, Event.DECODE)]
    second_prefill = [e.event for e in launches].index(Event.PREFILL, 1)
    assert second_prefill == WINDOW - 1, "it must wait for the next window"
    assert bench.answer(1).tokens == expected([6], 2)


def test_the_token_log_tells_the_same_as_the_extents(bench: Bench) -> None:
    bench.submit(0, [5], 20)
    bench.submit(1, [6], 15)
    bench.run_until_quiet()
    head = int(bench.ring.fe_sched[at.D_LOG_HEAD])
    log = [int(word) for word in bench.ring.log[:head]]
    assert head == 35
    for slot in (0, 1):
        assert [log_token(word) for word in log if log_slot(word) == slot] == bench.answer(slot).tokens


def test_an_engine_fault_ends_those_in_service_only(bench: Bench) -> None:
    for slot in range(6):
        bench.submit(slot, [slot + 3], 10)
    bench.step(3)
    bench.fault = 9
    bench.turn()
    bench.engine()
    bench.fault = 0
    bench.run_until_quiet()
    reasons = [bench.answer(slot).reason for slot in range(6)]
    assert reasons == [Reason.ERROR] * 4 + [Reason.LENGTH] * 2
    assert any(entry.event == Event.FAULT and entry.arguments[1] == 9 for entry in entries(bench.ring.flight))
    bench.check_nothing_held()


def test_a_step_past_its_deadline_is_a_fault(bench: Bench) -> None:
    bench.submit(0, [5], 10)
    bench.turn()
    bench.now += 2_000_000_000
    assert bench.turn() == sc.FAULTED
    assert bench.ring.status[at.S_ERROR] == sc.ERROR_STEP_DEADLINE


def test_a_launch_that_never_succeeds_is_a_fault_not_a_hang(bench: Bench) -> None:
    bench.launcher.running[:] = 1
    bench.submit(0, [5], 10)
    assert bench.turn() == sc.FAULTED
    assert bench.ring.status[at.S_ERROR] == sc.ERROR_LAUNCH
    assert bench.state.core[sc.K_RETRIES] == 64


def test_a_busy_executable_is_passed_over(bench: Bench) -> None:
    bench.launcher.running[:] = 0
    bench.submit(0, [5], 10)
    bench.step(2)
    first = int(bench.table.decode_lookup[1]) * 2
    turn = int(bench.state.graph_turn[first // 2]) % 2
    bench.launcher.running[(first + turn) * 8] = 1  # still running, as right after its last kernel's flag
    bench.run_until_quiet()
    assert bench.answer(0).tokens == expected([5], 10)
    assert bench.state.core[sc.K_RETRIES] >= 1


@pytest.mark.parametrize(
    "change",
    [
        {"Q_PROMPT_LEN": 0},
        {"Q_PROMPT_LEN": -1},
        {"Q_PROMPT_LEN": 1 << 40},
        {"Q_MAX_TOKENS": 0},
        {"Q_MAX_TOKENS": 256},
        {"Q_PROMPT_START": -1},
        {"Q_PROMPT_START": 64 * 512},
        {"Q_OUTPUT_START": 64 * 512 - 3},
        {"Q_STOP_COUNT": 17},
        {"Q_STOP_COUNT": -1},
        {"Q_MIN_TOKENS": 99},
        {"Q_LOGPROBS": -1},
        {"Q_LOGPROBS": at.MAX_LOGPROBS + 2},
        {"Q_LOGPROBS": 1, "Q_LOGPROBS_START": -2},
        {"Q_LOGPROBS": 3, "Q_LOGPROBS_START": 64 * 512 - 28},
    ],
)
def test_descriptors_that_make_no_sense_are_rejected(bench: Bench, change: dict) -> None:
    bench.submit(0, [5, 6, 7], 5, **change)
    bench.submit(1, [5, 6, 7], 5)
    bench.run_until_quiet()
    assert bench.answer(0).reason == Reason.REJECTED
    assert bench.answer(1).tokens == expected([5, 6, 7], 5)


@pytest.mark.parametrize("token", [-1, 512, 1 << 30])
def test_tokens_outside_the_vocabulary_never_reach_the_engine(bench: Bench, token: int) -> None:
    bench.submit(0, [5, token, 7], 5)
    bench.run_until_quiet()
    assert bench.answer(0).reason == Reason.REJECTED
    bench.check_nothing_held()


def test_a_cancel_that_overtakes_its_submit_ends_the_request_once(bench: Bench) -> None:
    bench.submit(0, [5], 5, command=CANCEL)
    bench.run_until_quiet()
    answer = bench.answer(0)
    assert (answer.reason, answer.tokens) == (Reason.CANCELLED, [])
    finishes = [entry for entry in entries(bench.ring.flight) if entry.event == Event.FINISH]
    assert len(finishes) == 1
