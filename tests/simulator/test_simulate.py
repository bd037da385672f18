"""The simulator against queueing theory, and its books against themselves."""

from __future__ import annotations

import numpy as np
import pytest

from blink_numba import lab
from blink_numba.lab.metrics import gap_quantile
from ring.recorder import Event, entries
from ring.states import Reason
from scheduler.policies import shipped
from scheduler.simulator import Requests, SimulationError, simulate
from scheduler.view import max_tokens

STEP = lab.constant(1000.0)  # every step takes a millisecond
NO_GAP = lab.Gap(0.001, 0.001)
ALONE = STEP.engine(seats=1, max_model_len=64, prefill_tokens=(16,))


def mean_and_error(values: np.ndarray, batches: int = 40) -> tuple[float, float]:
    """Mean and 99 % half width of correlated values, by the means of long batches."""
    means = np.array([part.mean() for part in np.array_split(values, batches)])
    return float(means.mean()), float(2.7 * means.std(ddof=1) / np.sqrt(batches))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_m_d_1_wait_is_within_its_confidence_bounds(load: float) -> None:
    # one seat, one step a request: a queue with Poisson arrivals and constant service
    requests = lab.poisson(load * 1000, 200_000, lab.fixed(1, 1), seed=3)
    outcome = simulate(requests, ALONE, STEP.times(NO_GAP))
    wait_ms, error = mean_and_error((outcome.seated - requests.arrive) / 1e6)
    assert abs(wait_ms - load / (2 * (1 - load))) < error + 0.002


def test_utilisation_of_m_d_1_is_its_load() -> None:
    requests = lab.poisson(600, 100_000, lab.fixed(1, 1), seed=4)
    outcome = simulate(requests, ALONE, STEP.times(NO_GAP))
    assert abs(outcome.counts["busy_ns"] / outcome.counts["clock_ns"] - 0.6) < 0.01


@pytest.mark.parametrize("policy", shipped(), ids=lambda policy: policy.name)
def test_littles_law_holds_under_every_policy(policy) -> None:
    table = lab.table("h200-llama3-8b")
    spec = table.engine(seats=8, max_model_len=2048)
    requests = lab.poisson(3.0, 3_000, lab.lognormal(200, 100, longest=2048), seed=5, tenants=3, priorities=3)
    outcome = simulate(requests, spec, table.times(), policy)
    assert (outcome.reason == Reason.LENGTH).all()
    # the time average of the number in the system, counted at every arrival and every end
    change = np.concatenate([np.ones(len(requests)), -np.ones(len(requests))])
    when = np.concatenate([requests.arrive, outcome.done])
    order = np.argsort(when, kind="stable")
    inside, span = np.cumsum(change[order])[:-1], np.diff(when[order])
    in_system = (inside * span).sum() / (when.max() - when.min())
    rate = len(requests) / (when.max() - when.min())
    assert in_system == pytest.approx(rate * (outcome.done - requests.arrive).mean(), rel=1e-6)
    assert inside.min() >= 0
    assert inside[-1] == 1


def test_answers_take_what_the_tables_say() -> None:
    # alone: a prefill, then a decode a token; tables of 5 ms and 2 ms
    table = lab.constant(2000.0, prefill_us=5000.0)
    spec = table.engine(seats=4, max_model_len=64, prefill_tokens=(16,))
    outcome = simulate(Requests.of([7], 10, 6), spec, table.times(NO_GAP))
    assert outcome.first[0] - 7 == pytest.approx(5e6, abs=10)
    assert outcome.done[0] - 7 == pytest.approx(5e6 + 5 * 2e6, abs=20)
    assert outcome.counts["prefills"] == 1
    assert outcome.counts["decodes"] == 5


def test_gaps_between_steps_delay_every_token() -> None:
    spec = STEP.engine(seats=4, max_model_len=64, prefill_tokens=(16,))
    requests = Requests.of([0], 4, 50)
    quick = simulate(requests, spec, STEP.times(NO_GAP))
    slow = simulate(requests, spec, STEP.times(lab.Gap(500.0, 500.0)))
    assert (slow.done - quick.done)[0] == pytest.approx(50 * 0.5e6, rel=0.01)
    assert gap_quantile(slow.gaps, 50) == pytest.approx(1.5, rel=0.05)


def test_same_seed_same_outcome_and_lengths_have_their_means() -> None:
    one, two = (lab.poisson(5, 20_000, seed=9) for _ in range(2))
    assert np.array_equal(one.arrive, two.arrive)
    assert np.array_equal(one.output, two.output)
    assert one.prompt.mean() == pytest.approx(1019, rel=0.03)
    assert one.output.mean() == pytest.approx(463, rel=0.03)


def test_closed_loop_keeps_its_users_busy() -> None:
    spec = STEP.engine(seats=4, max_model_len=64, prefill_tokens=(16,))
    requests = lab.closed_loop(4, 400, lab.fixed(4, 8), think_s=0.0)
    outcome = simulate(requests, spec, STEP.times(NO_GAP))
    assert (outcome.done > 0).all()
    arrive = outcome.requests.arrive
    # each request but the first four is sent at the end of another
    assert np.isin(arrive[4:], outcome.done).all()
    inside = [(arrive <= t).sum() - (outcome.done <= t).sum() for t in arrive[4:-4:37]]
    assert max(inside) <= 4


def test_a_full_ring_makes_requests_wait_before_it() -> None:
    spec = STEP.engine(seats=1, max_model_len=64, prefill_tokens=(16,))
    requests = Requests.of(np.arange(100), 2, 3)
    outcome = simulate(requests, spec, STEP.times(NO_GAP), slots=32)
    assert (np.diff(outcome.done) > 0).all()
    assert (outcome.reason == Reason.LENGTH).all()


def test_deadlines_end_requests_that_wait_or_run() -> None:
    spec = STEP.engine(seats=1, max_model_len=64, prefill_tokens=(16,))
    requests = Requests.of([0, 0, 0], 2, 40, deadline=[0, 5_000_000, 45_000_000])
    outcome = simulate(requests, spec, STEP.times(NO_GAP))
    assert [Reason(r) for r in outcome.reason] == [Reason.LENGTH, Reason.DEADLINE, Reason.DEADLINE]
    assert outcome.seated[1] == -1
    assert outcome.first[2] > 0


def test_few_blocks_preempt_and_everybody_still_finishes() -> None:
    spec = STEP.engine(seats=8, max_model_len=256, kv_tokens=640, prefill_tokens=(64,))
    requests = Requests.of(np.zeros(30), 20, 150)
    outcome = simulate(requests, spec, STEP.times(NO_GAP))
    assert outcome.counts["preemptions"] > 0
    assert outcome.preempted.sum() == outcome.counts["preemptions"]
    assert (outcome.reason == Reason.LENGTH).all()


def test_series_and_flight_recorder_tell_of_the_steps() -> None:
    spec = STEP.engine(seats=4, max_model_len=64, prefill_tokens=(16,))
    outcome = simulate(Requests.of([0, 0], 4, 8), spec, STEP.times(NO_GAP), every=1)
    assert len(outcome.series) == outcome.counts["steps"]
    assert (np.diff(outcome.series[:, 0]) > 0).all()
    recorded = entries(outcome.flight)
    assert sum(e.event == Event.DECODE for e in recorded) == outcome.counts["decodes"]
    assert sum(e.event == Event.FINISH for e in recorded) == 2


def test_a_policy_that_admits_nobody_is_told() -> None:
    never = lab.policy(name="never", may_admit=_never)
    with pytest.raises(SimulationError, match="may_admit says no"):
        simulate(Requests.of([0], 2, 3), ALONE, STEP.times(NO_GAP), never)


def _never(view, request):
    return max_tokens(view, request) < 0


def test_bad_input_is_told() -> None:
    times = STEP.times(NO_GAP)
    with pytest.raises(SimulationError, match="request 1 has 90 tokens"):
        simulate(Requests.of([0, 1], [2, 80], [3, 10]), ALONE, times)
    with pytest.raises(SimulationError, match="limit of steps"):
        simulate(Requests.of([0], 2, 30), ALONE, times, most_steps=5)
    with pytest.raises(ValueError, match="must ascend"):
        Requests.of([5, 1], 2, 3)
    with pytest.raises(ValueError, match="output must be at least 1"):
        Requests.of([0], 2, 0)
