"""Checking a policy before it meets anybody's requests: does it compile everywhere, does it starve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blink_numba.lab.step_times import Table, roofline
from graphs.step_io import EngineSpec
from ring.states import R_LENGTH
from scheduler.policy import FCFS, Policy, PolicyStarves
from scheduler.policy_check import pointers
from scheduler.simulator import Outcome, Requests, simulate

SECOND = 1_000_000_000
FLOOD = 2_000  # requests of the adversary
OVERLOAD = 1.15  # of what the engine serves


@dataclass(frozen=True)
class Checked:
    """What the check found.

    Attributes
    ----------
    longest_wait_s : float
        Of any request for its first seat, under the adversaries below.
    fcfs_wait_s : float
        The same with first come, first served.
    bound_s : float or None
        What the policy promises (`Policy.bound_s`) as a wait in seconds.
    preemptions : int
    """

    longest_wait_s: float
    fcfs_wait_s: float
    bound_s: float | None
    preemptions: int


def check(policy: Policy, *, table: Table | None = None) -> Checked:
    """Compile a policy and flood it with what it might prefer.

    Each adversary is a steady overload of one kind of requests (short ones, urgent ones, another
    tenant's, ones with near deadlines), with a few of the opposite kind among them. A policy that
    lets those wait longer than its bound starves them.

    Raises
    ------
    PolicyError
        It does not compile, or does what a kernel cannot.
    PolicyStarves
        A request waited longer than `Policy.bound_s` times first come, first served's longest wait; or a
        request was never served at all.
    """
    pointers(policy)
    table = table or roofline(parameters=8e9, kv_bytes_per_token=131_072, memory_gb_s=4300, tflops=600)
    spec = table.engine(seats=8, max_model_len=4096)
    longest, baseline, preemptions = 0.0, 0.0, 0
    for name, requests in adversaries(table, spec):
        first_come = _worst(simulate(requests, spec, table.times(), FCFS))[1]
        outcome = simulate(requests, spec, table.times(), policy)
        request, wait = _worst(outcome)
        preemptions += outcome.counts["preemptions"]
        longest, baseline = max(longest, wait), max(baseline, first_come)
        if policy.bound_s is not None and wait > policy.bound_s * first_come:
            raise PolicyStarves(_complaint(policy, name, outcome, request, wait, first_come))
    bound = None if policy.bound_s is None else policy.bound_s * baseline
    return Checked(longest, baseline, bound, preemptions)


def adversaries(table: Table, spec: EngineSpec) -> list[tuple[str, Requests]]:
    """Workloads that favour one kind of request and hide a few of another among them."""
    rng = np.random.default_rng(7)
    times = table.times()
    small = 32
    # a flood of small requests a little faster than they can be served
    step_s = float(times.decode[:1].item()) / 1e9
    rate = OVERLOAD * spec.seats / (small * step_s)
    count = FLOOD
    arrive = np.cumsum(rng.exponential(1 / rate, count)) * SECOND
    rare = np.zeros(count, bool)
    rare[50 : count // 2 : 97] = True
    output = np.where(rare, 16 * small, small)
    flood = {"prompt": np.where(rare, 512, 64), "output": output}
    same = {"prompt": 64, "output": small}
    soon = np.where(rare, 0, 30 * SECOND)
    return [
        ("many short, few long", Requests.of(arrive, **flood)),
        ("many urgent, few not", Requests.of(arrive, **same, priority=np.where(rare, 9, 0))),
        ("one tenant floods", Requests.of(arrive, **same, tenant=np.where(rare, 1, 0))),
        ("many with deadlines, few without", Requests.of(arrive, **same, deadline=soon)),
    ]


def _worst(outcome: Outcome) -> tuple[int, float]:
    """The request that waited longest for its first seat, and how long (s); those that never got one too."""
    until = np.where(outcome.seated >= 0, outcome.seated, outcome.done)
    wait = (until - outcome.requests.arrive) / SECOND
    wait = np.where((outcome.seated < 0) & (outcome.reason == R_LENGTH), np.inf, wait)
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
        f"tenant {asked.tenant[request]}) waited {wait:.1f} s for a seat, "
        f"{overtaking} later ones overtook it; "
        f"its bound is {policy.bound_s:g} times first come's {first_come:.1f} s. Let keys age: "
        "add arrived_ns(view, request), so that nobody can be overtaken for ever"
    )
