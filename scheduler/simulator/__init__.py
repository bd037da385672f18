"""The scheduler on a virtual clock: the real turn, made-up engine and arrivals.

`simulate` takes arrays of requests (`Requests`), the shapes of an engine and how long its
steps take (`StepTimes`), and returns what became of each request (`Outcome`). Workloads,
metrics, sweeps and plots are in `blink_numba.lab`.
"""

from __future__ import annotations

from scheduler.simulator.events import StepTimes
from scheduler.simulator.run import Outcome, Requests, SimulationError, simulate

__all__ = ["Outcome", "Requests", "SimulationError", "StepTimes", "simulate"]
