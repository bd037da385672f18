"""Cancels, deadlines, dead front ends, drain and stop; recovery on the same state and the same ring."""

from __future__ import annotations

import pytest

from ring import layout as at
from ring.states import Reason, State
from scheduler import state as sc
from scheduler.recovery import abandon, adopt
from tests.scheduler.harness import Bench, expected


@pytest.fixture
def bench() -> Bench:
    return Bench(slots=128, front_ends=2)


def test_a_cancel_ends_a_running_request_within_one_step(bench: Bench) -> None:
    bench.submit(0, [5], 100)
    bench.step(10)
    had = bench.answer(0).tokens
    bench.cancel(0)
    bench.step()
    answer = bench.answer(0)
    assert (answer.state, answer.reason) == (State.DECODE_COMPLETED, Reason.CANCELLED)
    assert len(had) <= len(answer.tokens) <= len(had) + 1
    assert answer.tokens == expected([5], len(answer.tokens))
    bench.run_until_quiet()
    bench.check_nothing_held()


def test_cancels_of_waiting_paused_and_prefilling_requests(bench: Bench) -> None:
    for slot in range(6):
        bench.submit(slot, [slot + 3] * 100, 50)
    bench.step(2)  # some prefill, some wait
    for slot in range(6):
        bench.cancel(slot)
    bench.run_until_quiet()
    assert {bench.answer(slot).reason for slot in range(6)} == {Reason.CANCELLED}
    bench.check_nothing_held()


def test_a_cancel_after_the_end_changes_nothing(bench: Bench) -> None:
    bench.submit(0, [5], 3)
    bench.run_until_quiet()
    before = bench.answer(0)
    bench.cancel(0)
    bench.run_until_quiet()
    assert bench.answer(0) == before


@pytest.mark.parametrize("waits", [False, True])
def test_deadlines_are_durations_from_first_sight(bench: Bench, waits: bool) -> None:
    if waits:
        for slot in range(1, 5):
            bench.submit(slot, [9], 200)
        bench.step(3)
    bench.submit(0, [5], 200, Q_DEADLINE_NS=50_000)
    bench.step(100)
    answer = bench.answer(0)
    assert answer.reason == Reason.DEADLINE
    assert (len(answer.tokens) == 0) == waits
    assert answer.tokens == expected([5], len(answer.tokens))
    bench.run_until_quiet()
    bench.check_nothing_held()


def declare_dead(bench: Bench, front_end: int) -> None:
    bench.ring.fe_fence[front_end * at.FE_WORDS + at.F_FENCE] += 1


def drained(bench: Bench, front_end: int) -> int:
    return int(bench.ring.fe_sched[front_end * at.FE_WORDS + at.D_DRAINED])


def test_a_dead_front_ends_requests_end_and_the_others_go_on(bench: Bench) -> None:
    bench.submit(0, [5], 60)
    bench.submit(64, [6], 60)
    bench.step(5)
    declare_dead(bench, 0)
    bench.run_until_quiet()
    assert bench.answer(0).reason == Reason.ABORTED
    assert bench.answer(64).tokens == expected([6], 60)
    assert (drained(bench, 0), drained(bench, 1)) == (1, 0)
    bench.check_nothing_held()


def test_a_front_end_that_died_before_its_doorbell_is_searched(bench: Bench) -> None:
    bench.submit(7, [5], 10, doorbell=False)
    bench.step(3)
    assert bench.answer(7).state == State.EMPTY
    declare_dead(bench, 0)
    bench.run_until_quiet()
    answer = bench.answer(7)
    assert (answer.incarnation, answer.reason) == (1, Reason.ABORTED)
    assert drained(bench, 0) == 1


def test_a_successor_uses_the_slots_again_and_may_die_too(bench: Bench) -> None:
    bench.submit(7, [5], 50)
    bench.step(3)
    declare_dead(bench, 0)
    bench.run_until_quiet()
    bench.submit(7, [8], 6)
    bench.run_until_quiet()
    assert bench.answer(7).tokens == expected([8], 6)
    declare_dead(bench, 0)
    bench.step(3)
    assert drained(bench, 0) == 2


def test_drain_lets_all_finish_and_then_stops(bench: Bench) -> None:
    for slot in range(8):
        bench.submit(slot, [slot + 3], 20)
    bench.step(2)
    bench.ring.command[at.C_STOP] = at.DRAIN
    for _ in range(500):
        verdict = bench.turn()
        bench.engine()
        if verdict == sc.STOPPED:
            break
    assert verdict == sc.STOPPED
    for slot in range(8):
        assert bench.answer(slot).tokens == expected([slot + 3], 20)


def test_stop_ends_all_at_the_next_boundary(bench: Bench) -> None:
    for slot in range(8):
        bench.submit(slot, [slot + 3], 200)
    bench.step(5)
    bench.ring.command[at.C_STOP] = at.STOP
    verdicts = []
    for _ in range(3):
        verdicts.append(bench.turn())
        bench.engine()
    assert sc.STOPPED in verdicts
    assert {bench.answer(slot).reason for slot in range(8)} == {Reason.SHUTDOWN}
    bench.check_nothing_held()


def test_after_a_fault_in_place_the_queued_are_served_and_those_in_service_end(bench: Bench) -> None:
    for slot in range(7):
        bench.submit(slot, [slot + 3], 20)
    bench.step(4)
    bench.turn()
    bench.now += 2_000_000_000
    assert bench.turn() == sc.FAULTED
    bench.engine()  # the step that was given up ends late, before the restart
    abandon(bench.state, bench.io)
    bench.run_until_quiet()
    reasons = [bench.answer(slot).reason for slot in range(7)]
    assert reasons == [Reason.ERROR] * 4 + [Reason.LENGTH] * 3
    for slot in range(7):
        tokens = bench.answer(slot).tokens
        assert tokens == expected([slot + 3], len(tokens))
    bench.check_nothing_held()


def test_a_new_engine_takes_over_the_ring_in_arrival_order(bench: Bench) -> None:
    arrivals = (30, 4, 100, 9, 60, 2, 77)
    for slot in arrivals:
        bench.submit(slot, [5], 20)
        bench.turn()
        bench.engine()
    waiting = [slot for slot in arrivals if bench.answer(slot).state == State.PREFILL_PENDING]
    assert waiting == [60, 2, 77]
    successor = Bench(slots=128, front_ends=2)
    successor.ring, successor.words = bench.ring, bench.words
    assert adopt(successor.ring, successor.state, successor.now) == (3, 4)
    successor.submit(10, [6], 4)
    successor.run_until_quiet()
    for slot in (30, 4, 100, 9):
        assert bench.answer(slot).reason == Reason.ERROR
    for slot in waiting:
        assert bench.answer(slot).tokens == expected([5], 20)
    assert bench.answer(10).tokens == expected([6], 4)
    tickets = [int(successor.state.slots[slot * sc.SLOT_WORDS + sc.SL_TICKET]) for slot in (*waiting, 10)]
    assert tickets == [0, 1, 2, 3]
    successor.check_nothing_held()


def test_incarnations_go_on_past_their_largest(bench: Bench) -> None:
    from ring.words import INCARNATION_MASK, pack_ctl, pack_req, RELEASE, SUBMIT  # noqa: I001

    last = INCARNATION_MASK
    bench.ring.ctl[0] = pack_ctl(last, 0, Reason.STOP, State.DECODE_COMPLETED)
    bench.ring.req[0] = pack_req(last, RELEASE)
    bench.ring.doorbell[0] |= 1
    bench.state.parity[0] |= 1
    bench.state.slots[sc.SL_INCARNATION] = last
    bench.submit(0, [5], 3)
    bench.ring.req[0] = pack_req(0, SUBMIT)
    bench.run_until_quiet()
    assert bench.answer(0).incarnation == 0
    assert bench.answer(0).tokens == expected([5], 3)
