"""Checking a policy before it meets anybody's requests: does it compile everywhere, does it starve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blink_numba.lab.step_times import Table, roofline
from blink_numba.lab.workloads import lognormal, poisson
from graphs.step_io import EngineSpec
from scheduler.policy import FCFS, Policy, PolicyError, PolicyStarves, watchful
from scheduler.policy_check import place, pointers
from scheduler.simulator import Outcome, Requests, SimulationError, StepTimes, simulate

SECOND = 1_000_000_000
FLOOD_S = 80  # how long an adversary keeps on: what starves waits about as long
RARE = 97  # one in so many is of the other kind
OVERLOAD = 1.03  # of what the engine serves: first come, first served then waits a few seconds


@dataclass(frozen=True)
class Checked:
    """What the check found.

    Attributes
    ----------
    longest_wait_s : float
        Of any request for its first token, under the adversaries.
    fcfs_wait_s : float
        Under the same adversary, with first come, first served.
    ratio, bound : float, float or None
        The largest of the two waits' ratios, and what the policy promises.
    preemptions : int
        In all simulations together.
    """

    longest_wait_s: float
    fcfs_wait_s: float
    ratio: float
    bound: float | None
    preemptions: int


def check(policy: Policy, *, table: Table | None = None) -> Checked:
    """Compile a policy and flood it with what it might prefer.

    Each adversary is a lasting slight overload of one kind of requests (short ones, urgent ones,
    another tenant's, ones with near deadlines), with a few of the opposite kind among them. A policy
    that lets those wait longer than its bound starves them.

    Raises
    ------
    PolicyError
        It does not compile, does what a kernel cannot, divides by zero, reads beside an array, or admits
        nobody any more.
    PolicyStarves
        A request waited longer than `Policy.bound` allows.
    """
    try_out(policy)
    table = table or roofline(parameters=8e9, kv_bytes_per_token=131_072, memory_gb_s=4300, tflops=600)
    spec, times = table.engine(seats=8, max_model_len=2048), table.times()
    worst, preemptions = (0.0, 0.0, 0.0), 0
    for name, requests in adversaries(table, spec):
        first_come = _longest(simulate(requests, spec, times, FCFS))[1]
        outcome = _simulate(requests, spec, times, policy)
        request, wait = _longest(outcome)
        preemptions += outcome.counts["preemptions"]
        worst = max(worst, (wait / first_come, wait, first_come))
        if policy.bound is not None and wait > policy.bound * first_come:
            raise PolicyStarves(_complaint(policy, name, outcome, request, wait, first_come))
    return Checked(worst[1], worst[2], worst[0], policy.bound, preemptions)


def try_out(policy: Policy) -> None:
    """The quick part of `check`, for a policy that is about to be put in force.

    It is compiled, and serves a few hundred requests compiled to raise where a kernel goes on with a
    zero, or with what lies beside an array: an engine could end by that.

    Raises
    ------
    PolicyError
        As of `check`.
    """
    pointers(policy)
    table = roofline(parameters=1e9, kv_bytes_per_token=65_536, memory_gb_s=1000, tflops=100)
    watched = watchful(policy)
    requests = poisson(40.0, 400, lognormal(200, 60, longest=1024), tenants=4, priorities=3, deadline_s=1.0)
    try:
        _simulate(requests, table.engine(seats=4, max_model_len=1024), table.times(), watched)
    except (ZeroDivisionError, IndexError) as error:
        places = ", ".join(f"{kind} ({place(body)})" for kind, body in policy.sources.items())
        remedy = "fold the index into the array's length, as in index % len(array)"
        if isinstance(error, ZeroDivisionError):
            remedy = "keep the divisor from zero, as in max(divisor, 1)"
        raise PolicyError(
            f"policy {policy.name!r}: {error}, in {places}; a kernel does not notice: {remedy}"
        ) from error


def _simulate(requests: Requests, spec: EngineSpec, times: StepTimes, policy: Policy) -> Outcome:
    try:
        return simulate(requests, spec, times, policy)
    except SimulationError as error:
        raise PolicyError(str(error)) from error


def adversaries(table: Table, spec: EngineSpec) -> list[tuple[str, Requests]]:
    """Workloads that favour one kind of request and hide a few of another among them."""
    small, large, prompt = 32, 512, 64
    mixed, mixed_rare = _flood(table, spec, prompt, small, large)
    plain, rare = _flood(table, spec, prompt, small, small)
    same = {"prompt": prompt, "output": small}
    return [
        ("many short, few long", Requests.of(mixed, prompt, np.where(mixed_rare, large, small))),
        ("many urgent, few not", Requests.of(plain, **same, priority=np.where(rare, 2, 0))),
        ("one tenant floods", Requests.of(plain, **same, tenant=np.where(rare, 1, 0))),
        ("many with deadlines, few without",
         Requests.of(plain, **same, deadline=np.where(rare, 0, 50 * SECOND))),
    ]  # fmt: skip


def _flood(table: Table, spec: EngineSpec, prompt: int, output: int,
           rare_output: int) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Arrivals a little faster than they can be served; and which of them are the rare ones, all early."""
    mix = np.where(np.arange(1024) % RARE == 0, rare_output, output)
    served = simulate(Requests.of(np.zeros(1024), prompt, mix), spec, table.times(), FCFS)
    rate = OVERLOAD * 1024 * SECOND / served.counts["clock_ns"]
    count = int(rate * FLOOD_S)
    arrive = np.cumsum(np.random.default_rng(7).exponential(1 / rate, count)) * SECOND
    rare = np.zeros(count, bool)
    rare[count // 20 : count // 4 : RARE] = True  # early, so that what starves waits long
    return arrive, rare


def _longest(outcome: Outcome) -> tuple[int, float]:
    """The request that waited longest for its first token (or in vain, until its end), and how long (s)."""
    until = np.where(outcome.first >= 0, outcome.first, outcome.done)
    wait = (until - outcome.requests.arrive) / SECOND
    request = int(wait.argmax())
    return request, float(wait[request])


def _complaint(
    policy: Policy, adversary: str, outcome: Outcome, request: int, wait: float, first_come: float
) -> str:
    asked = outcome.requests
    overtaking = int(
        (
            (asked.arrive > asked.arrive[request])
            & (outcome.seated >= 0)
            & (outcome.seated < outcome.seated[request])
        ).sum()
    )
    return (
        f"policy {policy.name!r} starves under {adversary!r}: request {request} "
        f"({asked.prompt[request]} + {asked.output[request]} tokens, priority {asked.priority[request]}, "
        f"tenant {asked.tenant[request]}) waited {wait:.1f} s for its first token, "
        f"{overtaking} later ones overtook it; "
        f"its bound is {policy.bound:g} times first come's {first_come:.1f} s. Let keys age: "
        "add arrived_ns(view, request), so that nobody can be overtaken for ever"
    )
