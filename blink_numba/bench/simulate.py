"""The laboratory's own speed: simulated steps a second, a million requests, a cell to its plot."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from typing import Annotated

import typer

from blink_numba.bench.report import RESULTS, Row, load, median_row

STEPS_TARGET, MILLION_TARGET_S, CELL_TARGET_S = 2_000_000, 10.0, 15.0
SEATS, SLOTS = 16, 4096
LOAD = 0.85  # of what the engine serves: busy, and stable
CPU_SECONDS_NOTE = "of this process's own processor time: other processes on the core do not count"

# What a notebook's cells would do, in a process that has never seen the policy.
CELL = """
import time
began = time.perf_counter()
from blink_numba import lab
from blink_numba.lab import plots
from scheduler.view import arrived_ns, prompt_tokens
imported = time.perf_counter() - began

@lab.policy
def short_prompts_first(view, request):
    return arrived_ns(view, request) + 2_000_000 * prompt_tokens(view, request)

table = lab.table("h200-llama3-8b")
spec = table.engine(seats=16)
requests = lab.poisson(4.0, 20_000, seed=1)
outcomes = {p.name: lab.simulate(requests, spec, table.times(), p) for p in (lab.FCFS, short_prompts_first)}
import matplotlib
matplotlib.use("Agg")
plots.latency_curves(outcomes).savefig("/dev/null", format="png")
print(time.perf_counter() - began)
"""


def run(
    requests: Annotated[int, typer.Option(help="Requests of the million-request case.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(help="Repeats; the median counts.", min=1)] = 5,
) -> list[Row]:
    """Simulated steps a second on one core, a million requests, a new policy from cell to plot.

    Beside them the committed figure of what a policy costs a step on a GPU.
    """
    from blink_numba import lab
    from scheduler.simulator import Requests, simulate

    table = lab.table("h200-llama3-8b")
    spec, times = table.engine(seats=SEATS), table.times()
    rate = LOAD * _capacity(lab.sharegpt(), table, spec)
    workload = lab.poisson(rate, 3_000, seed=1)
    simulate(Requests.of([0], 1, 1), spec, times, slots=SLOTS)  # compiled, or loaded
    runs = [_timed(workload, spec, times) for _ in range(repeats)]
    rows_of_step = runs[0][1].counts["rows_ns"] / (
        runs[0][1].counts["busy_ns"] - runs[0][1].counts["prefill_ns"]
    )
    rows = [
        median_row("steps_s", [outcome.counts["steps"] / spent for spent, outcome in runs], "steps/s",
                   STEPS_TARGET, seats=SEATS, slots=SLOTS, policy="fcfs", scan="doorbell", load=LOAD,
                   mean_rows=round(rows_of_step, 2), lengths="sharegpt", time=CPU_SECONDS_NOTE),
    ]  # fmt: skip
    full = Requests.of([0] * 4096, 256, 256, users=SEATS)
    runs = [_timed(full, spec, times) for _ in range(repeats)]
    rows.append(
        median_row("steps_s_all_seats", [outcome.counts["steps"] / spent for spent, outcome in runs],
                   "steps/s", seats=SEATS, slots=SLOTS, note="every step decodes all seats",
                   time=CPU_SECONDS_NOTE)
    )  # fmt: skip
    rows.append(_million(requests, table))
    rows.append(_cell_to_plot(repeats))
    rows.append(_policy_overhead())
    return rows


def _policy_overhead() -> Row:
    """What a policy costs a step inside the GPU's kernel: the committed figure of ``bench agreement``."""
    report = load(RESULTS / "agreement-h200.json")
    row = next(row for row in report.rows if row.case == "gpu/policy_overhead_us")
    row.extra["source"] = f"not measured now: bench agreement, {report.env['gpu']}, {report.env['date'][:10]}"
    return row


def _timed(workload, spec, times):
    from scheduler.simulator import simulate

    began = time.process_time()
    outcome = simulate(workload, spec, times, slots=SLOTS)
    return time.process_time() - began, outcome


def _capacity(lengths, table, spec) -> float:
    """Requests a second that the engine serves when there are always some waiting."""
    from blink_numba import lab
    from scheduler.simulator import simulate

    outcome = simulate(lab.closed_loop(4 * spec.seats, 2_000, lengths), spec, table.times(), slots=SLOTS)
    return 2_000 / outcome.counts["clock_ns"] * 1e9


def _million(count: int, table) -> Row:
    """A million short exchanges (128 tokens in, 64 out on average) on 64 seats at 85 % load."""
    from blink_numba import lab

    spec, lengths = table.engine(seats=64, max_model_len=2048), lab.lognormal(128, 64, longest=2048)
    rate = LOAD * _capacity(lengths, table, spec)
    workload = lab.poisson(rate, count, lengths, seed=2)
    spent, outcome = _timed(workload, spec, table.times())
    return Row(
        "million_requests_s", spent * 1e6 / count, "s", MILLION_TARGET_S, "lower", requests=count,
        steps=outcome.counts["steps"], tokens=int(workload.output.sum()), seats=64, prompt_mean=128,
        output_mean=64, wall_s=round(outcome.wall_s, 2), time=CPU_SECONDS_NOTE,
    )  # fmt: skip


def _cell_to_plot(repeats: int) -> Row:
    """A process of its own, so that imports and the policy's compilation count; the step is in the cache."""
    from resource import RUSAGE_CHILDREN, getrusage

    values, walls = [], []
    for _ in range(min(repeats, 3)):
        before = getrusage(RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", CELL], capture_output=True, text=True, timeout=600,
                              env={**os.environ, "MPLBACKEND": "Agg"}, check=False)  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"the cell failed: {done.stderr.strip().splitlines()[-1]}")
        after = getrusage(RUSAGE_CHILDREN)
        values.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        walls.append(float(io.StringIO(done.stdout).readline()))
    return median_row(
        "cell_to_plot_s", values, "s", CELL_TARGET_S, "lower", wall_s=[round(w, 2) for w in walls],
        note="new process, new policy compiled, 2 x 20,000 requests, plot; the step from the compile cache",
        time=CPU_SECONDS_NOTE,
    )  # fmt: skip
