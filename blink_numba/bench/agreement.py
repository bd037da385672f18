"""Do simulator and engine agree: every decision, and the times that clients see.

The engine is started here; its step times are measured into a table, a workload is run on it and
simulated on the table with the same arrivals, and its recorded decisions are replayed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from blink_numba.bench.flight import decode_steps
from blink_numba.bench.report import Row, median_row
from blink_numba.bench.resident import SideBySide
from blink_numba.runtime import EngineConfig, EngineProcess
from blink_numba.runtime.process import wait_for
from graphs.step_io import EngineSpec

if TYPE_CHECKING:
    from blink_numba.lab.step_times import Table

RATIO_LOW, RATIO_HIGH = 0.9, 1.1  # predicted over measured
OVERHEAD_TARGET_US = 2.0
LONGEST = 512  # tokens of a request; the table is measured up to here
TIMES = "times"  # the engine whose step times are measured and predicted
LONE, LONE_EVERY_NS = 40, 25_000_000  # requests that meet nobody; further apart where one takes long
SWAP_S = 120.0  # until a policy is in force that must be compiled
LOAD = 0.6  # of what the engine serves
SLO_OF_TABLES = "steps as launched one after the other, gaps between them included"


def run(
    backend: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    model: Annotated[str, typer.Option(help="Whose times; a name or path.")] = "smollm2",
    requests: Annotated[int, typer.Option(help="Requests of each run.", min=10)] = 150,
    repeats: Annotated[int, typer.Option(help="Runs whose median counts.", min=1)] = 3,
    seats: Annotated[int, typer.Option(help="Seats of the engine.", min=1)] = 8,
    policies: Annotated[str, typer.Option(help="Whose decisions to replay, with commas; or all.")] = "all",
    machine: Annotated[str, typer.Option(help="Name of the machine in the cases.")] = "",
    save_table: Annotated[Path | None, typer.Option(help="Write the measured step times here.")] = None,
) -> list[Row]:
    """Predicted against measured medians of TTFT and TPOT; decisions that a replay makes differently."""
    if backend not in ("cpu", "cuda"):
        raise ValueError(f"backend {backend!r} must be cpu or cuda")
    machine = machine or ("h200" if backend == "cuda" else "cpu")
    names = _names(policies)
    configs = {TIMES: _config(backend, model, seats, "fcfs")}
    # decisions are no model's: on a CPU the smallest makes them soonest
    deciding = model if backend == "cuda" else "tiny"
    configs |= {name: _config(backend, deciding, seats, name) for name in names}
    # a policy is measured beside steps of known lengths: a model's differ by microseconds between processes
    busy = dict.fromkeys(names, "blink_numba.bench.null_engine") if backend == "cuda" else {}
    with SideBySide(configs, busy) as engines:
        with engines.running(TIMES) as engine:
            rows, table = _times(engine, requests, repeats, machine)
        if save_table is not None:
            table.save(save_table)
        steps: dict[str, np.ndarray] = {}
        for name in names:
            with engines.running(name) as engine:
                rows.append(_decisions(engine, requests, machine))
                if backend == "cuda":
                    steps[name] = _busy_steps(engine)
                if name == names[-1] and backend == "cuda":
                    swapped = _swap_row(engine)
    if backend == "cuda":
        rows += [policy_overhead(steps), swapped]
    return rows


def _names(policies: str) -> list[str]:
    from scheduler.policies import SHIPPED

    return list(SHIPPED) if policies == "all" else policies.split(",")


def _config(backend: str, model: str, seats: int, policy: str) -> EngineConfig:
    blocks = -(-(LONGEST + 1) // 16)
    return EngineConfig(
        model=model, backend=backend, dummy=backend == "cuda" and model != "tiny",  # type: ignore[arg-type]
        ring_name=f"agreement-{os.getpid()}", max_seats=seats, max_model_len=LONGEST,
        kv_tokens=16 * seats * (blocks + 1), policy=policy,
    )  # fmt: skip


def _lengths(spec: EngineSpec):
    from blink_numba import lab

    return lab.lognormal(LONGEST / 12, LONGEST / 12, longest=min(spec.max_model_len, LONGEST))


def _times(engine: EngineProcess, requests: int, repeats: int, machine: str):
    """Rows of the ratios of medians, and the table that the last run was predicted with."""
    from blink_numba import lab
    from blink_numba.lab.agreement import measure_table
    from blink_numba.lab.live import run_live
    from scheduler.simulator import simulate

    tpot, ttft, extra = [], [], {}
    model, vocab = engine.config.model, engine.spec.vocab_size - 8
    for seed in range(repeats):
        # anew for each run: what else the machine does changes a CPU's steps within minutes
        table = measure_table(
            engine.ring_name, engine.spec, name=f"{machine}-{model}", source=SLO_OF_TABLES, vocab_size=vocab,
            pads=engine.config.backend == "cuda",
        )  # fmt: skip
        # the table's steps hold the gaps between them, so the simulator adds none
        times, spec = table.times(lab.Gap(0.001, 0.001)), _simulated(engine.spec, table)
        around_ms = _around_ms(engine, spec, times)
        rate = LOAD * _capacity(spec, times)
        asked = lab.poisson(rate, requests, _lengths(spec), seed=seed)
        measured = run_live(engine.ring_name, asked, vocab_size=vocab, seed=seed)
        predicted = lab.Metrics.of(simulate(measured.requests, spec, times), warmup=0.0)
        ttft_ms, tpot_ms = float(np.median(measured.ttft_ms)), float(np.median(measured.tpot_ms))
        tpot.append(float(np.median(predicted.tpot)) / tpot_ms)
        ttft.append((float(np.median(predicted.ttft)) + around_ms) / ttft_ms)
        extra = {
            "model": model, "seats": spec.seats, "load": LOAD, "requests": requests, "low": RATIO_LOW,
            "around_ms": around_ms, "measured_ttft_ms": ttft_ms, "measured_tpot_ms": tpot_ms,
        }  # fmt: skip
    return [_ratio(f"agreement/{machine}/tpot_ratio", tpot, extra),
            _ratio(f"agreement/{machine}/ttft_ratio", ttft, extra)], table  # fmt: skip


def _around_ms(engine: EngineProcess, spec: EngineSpec, times) -> float:
    """What a request that meets nobody waits beyond its step: ring, claim, publication, the client's look.

    The simulator knows steps alone; its median of lone requests is held against the measured one.
    """
    from blink_numba import lab
    from blink_numba.lab.live import run_live
    from scheduler.simulator import Requests, simulate

    one = simulate(Requests.of([0], LONGEST // 12, 2), spec, times)
    every = max(LONE_EVERY_NS, 3 * one.counts["clock_ns"])
    lone = Requests.of(np.arange(LONE) * every, LONGEST // 12, 2)
    measured = run_live(engine.ring_name, lone, vocab_size=spec.vocab_size - 8)
    predicted = lab.Metrics.of(simulate(measured.requests, spec, times), warmup=0.0)
    return float(np.median(measured.ttft_ms) - np.median(predicted.ttft))


def _ratio(case: str, values: list[float], extra: dict) -> Row:
    """A ratio that should be within the band: the row's target is its distance from 1 below a tenth."""
    row = median_row(case, values, "ratio", RATIO_HIGH, "lower", **extra)
    if row.value < RATIO_LOW:  # below the band is no better than above it
        row.target, row.better = RATIO_LOW, "higher"
    return row


def _simulated(spec: EngineSpec, table: Table) -> EngineSpec:
    """An engine's shapes as the simulator needs them for times of this table; no answer ends early."""
    from blink_numba.lab.step_times import unpadded

    return replace(spec if table.pads else unpadded(spec), eos_ids=())


def _capacity(spec: EngineSpec, times) -> float:
    from blink_numba import lab
    from scheduler.simulator import simulate

    outcome = simulate(lab.closed_loop(2 * spec.seats, 400, _lengths(spec)), spec, times)
    return 400 / outcome.counts["clock_ns"] * 1e9


def _decisions(engine: EngineProcess, requests: int, machine: str) -> Row:
    """Decisions of a run, and how many of them a replay makes before it differs (all, if it agrees)."""
    from blink_numba import lab
    from blink_numba.lab.agreement import decisions
    from blink_numba.lab.live import run_live
    from scheduler.policies import find

    name, spec = engine.config.policy, engine.spec
    asked = lab.gamma(400.0, requests, 2.0, _lengths(spec), seed=5, tenants=3, priorities=3)
    measured = run_live(engine.ring_name, asked, vocab_size=spec.vocab_size - 8, seed=5, whole=True)
    found = decisions(measured, spec, engine.config.geometry(spec.max_model_len), find(name))
    made = len(measured.recording)
    differing = 0 if found is None else made - found.number
    return Row(
        f"agreement/{machine}/decisions_differing/{name}", differing, "count", 0, "lower", decisions=made,
        first=None if found is None else str(found),
    )  # fmt: skip


def _busy_steps(engine: EngineProcess) -> np.ndarray:
    """What steps of a full batch take beyond the engine's own time, while seven times as many wait; µs."""
    from blink_numba.bench.null_engine import BUSY_NS, busy_time
    from blink_numba.lab.live import run_live
    from scheduler.simulator import Requests

    seats = engine.spec.seats
    asked = Requests.of(np.zeros(8 * seats), 32, 128, tenant=np.arange(8 * seats) % 4)
    measured = run_live(engine.ring_name, asked, vocab_size=engine.spec.vocab_size - 8)
    entries = np.array([(e.number + 1, e.time_ns, e.event, *e.arguments, 0) for e in measured.recording])
    return decode_steps(entries, seats, lambda tickets: busy_time.py_func(tickets, BUSY_NS) / 1e3)


def policy_overhead(steps: dict[str, np.ndarray]) -> Row:
    """What a policy adds to a decode step on the GPU over first come, first served, requests waiting; µs.

    Of means: a step that ends while the scheduler looks at the ring waits for it, be it one in ten.
    """
    means = {name: float(np.mean(times)) for name, times in steps.items()}
    over = {name: value - means["fcfs"] for name, value in means.items() if name != "fcfs"}
    medians = {f"{name}_median_us": float(np.median(times)) for name, times in steps.items()}
    worst = max(over, key=lambda name: over[name])
    return Row("gpu/policy_overhead_us", over[worst], "us", OVERHEAD_TARGET_US, "lower", policy=worst,
               fcfs_us=means["fcfs"], **{f"{k}_us": v for k, v in over.items()}, **medians)  # fmt: skip


def _swap_row(engine: EngineProcess) -> Row:
    """Swap to a policy that the kernel was not made with; how long the scheduler stood still, ms."""
    from ring.memory import RingMemory
    from scheduler.policy_desk import ask_for, last_pause_ns

    with RingMemory.attach(engine.ring_name) as ring:
        other = "sjf" if engine.config.policy != "sjf" else "srpt"
        seconds = ask_for(ring.view, other, deadline_s=SWAP_S)
        if not wait_for(lambda: last_pause_ns(ring.view) > 0, SWAP_S):
            raise RuntimeError(f"the scheduler did not go on with policy {other} within {SWAP_S:g} s")
        pause_ms = last_pause_ns(ring.view) / 1e6
    return Row("gpu/swap_pause_ms", pause_ms, "ms", better="lower", asked_to_parked_s=seconds)
