"""What launching a step costs, by launch strategy: steps that compute nothing, on one GPU.

``faf/seen_us``: from the launch to the moment its end is seen; ``…/step_us``: from one step to
the next. For ``tail`` and ``while`` the step is the scheduler's own kernel (the launch alone);
``tail/pair_us`` and ``while/switch_us`` launch a step's graph as the strategies do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blink_numba.bench.report import Row, median_row

WINDOW = 120

# words of a miniature scheduler's state
STEP, TARGET, WINDOW_LIMIT, TRY_LIMIT, ERROR, WINDOWS, RETRIES, TURN = range(8)
STATE_WORDS = 8


def run(steps: int = 2400, repeats: int = 5) -> list[Row]:
    """Launch latency of each strategy; windows of fire-and-forget launches and their recovery."""
    from blink_numba.bench.launch_kernels import Miniatures

    minis = Miniatures(steps)
    try:
        rows = _fire_and_forget(minis, steps, repeats)
        for case, name, target in (
            ("tail/step_us", "tail/relaunch", 4.7),
            ("tail/pair_us", "tail/pair", None),
            ("while/step_us", "while/loop", 4.7),
            ("while/switch_us", "while/switch", None),
        ):
            runs = [_steps(_ended(name, steps, *minis.run(name))[1]) for _ in range(repeats)]
            rows.append(latency_row(case, runs, target))
        rows.append(latency_row("host/step_us", [_steps(minis.run_host()) for _ in range(repeats)]))
        return rows
    finally:
        minis.close()


def _fire_and_forget(minis: Any, steps: int, repeats: int) -> list[Row]:
    seen, step, between, retries = [], [], [], 0
    for _ in range(repeats):
        state, begun, until_seen = _ended("faf", steps, *minis.run("faf"))
        gaps = _steps(begun)
        ends_window = np.arange(1, steps) % WINDOW == 0
        seen.append(until_seen / 1e3)
        step.append(gaps[~ends_window])
        between.append(gaps[ends_window] - np.median(gaps[~ends_window]))
        retries += int(state[RETRIES])
    state, _, _ = minis.run("faf", window=WINDOW + 1, tries=0)
    return [
        latency_row("faf/seen_us", seen, 4.2),
        latency_row("faf/step_us", step, 4.2, steps_in_windows=WINDOW),
        latency_row("faf/window_us", between, note="added once a window by the tail launch of the scheduler"),
        Row("faf/retries", retries, "count", better="lower", steps=steps * repeats),
        Row("faf/window_launches", float(state[STEP]), "count", WINDOW, code=int(state[ERROR]),
            note="launches before the first that fails"),
    ]  # fmt: skip


def _ended(name: str, steps: int, state: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, ...]:
    """A run that did all its steps without an error."""
    if state[STEP] != steps or state[ERROR] != 0:
        raise RuntimeError(f"{name} ended after {state[STEP]} of {steps} steps with error {state[ERROR]}")
    return (state, *rest)


def _steps(begun: np.ndarray) -> np.ndarray:
    """Times between steps, µs."""
    return np.diff(begun) / 1e3


def latency_row(case: str, runs: Sequence[np.ndarray], target: float | None = None, **extra: Any) -> Row:
    """The median over runs of each run's median; with it the median of their P99."""
    medians = [float(np.median(times)) for times in runs]
    p99 = float(np.median([np.percentile(times, 99) for times in runs]))
    mean = float(np.mean([times.mean() for times in runs]))
    return median_row(case, medians, "us", target, "lower", p99=p99, mean=mean, samples=len(runs[0]), **extra)
