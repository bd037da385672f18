"""The laboratory for scheduling: write a policy, check it, simulate it, compare.

A policy is a few lines (`scheduler.policy.policy`, with the questions of `scheduler.view`); the
simulator runs the real scheduler's turn on a virtual clock (`scheduler.simulator`). Here are
the arrivals (`poisson`, `gamma`, `closed_loop`, `load_trace`), how long steps take (`table`,
`roofline`, `GAPS`), what is measured (`Metrics`, `Slo`), whether a policy starves (`check`),
many runs (`sweep`) and their plots (`blink_numba.lab.plots`). `blink_numba.lab.agreement` replays the
flight recorder of a real run, on CPU or GPU, and compares decision for decision.
"""

from __future__ import annotations

from blink_numba.lab.check import Checked, check
from blink_numba.lab.metrics import Metrics, Slo
from blink_numba.lab.step_times import GAPS, Gap, Table, constant, roofline, table, tables
from blink_numba.lab.sweep import sweep
from blink_numba.lab.workloads import (
    Lengths,
    closed_loop,
    fixed,
    gamma,
    load_trace,
    lognormal,
    poisson,
    sharegpt,
)
from scheduler.policy import FCFS, Policy, PolicyError, PolicyStarves, named_policy, policy
from scheduler.simulator import Outcome, Requests, SimulationError, simulate

__all__ = [
    "FCFS",
    "GAPS",
    "Checked",
    "Gap",
    "Lengths",
    "Metrics",
    "Outcome",
    "Policy",
    "PolicyError",
    "PolicyStarves",
    "Requests",
    "SimulationError",
    "Slo",
    "Table",
    "check",
    "closed_loop",
    "constant",
    "fixed",
    "gamma",
    "load_trace",
    "lognormal",
    "named_policy",
    "poisson",
    "policy",
    "roofline",
    "sharegpt",
    "simulate",
    "sweep",
    "table",
    "tables",
]
