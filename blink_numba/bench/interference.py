"""What busy CPUs do to serving, by launch strategy: a closed loop, idle and beside CPU burners.

Step times are the scheduler's own stamps (flight recorder); TTFT, TPOT and throughput are seen
by a client process that only polls the ring and has a core of its own, as a network card has.
Engine host process and burners share the other cores.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from blink_numba.bench.burners import Burners, reserved_core
from blink_numba.bench.client import ClientProcess, Load
from blink_numba.bench.flight import quantiles
from blink_numba.bench.report import Row
from blink_numba.bench.resident import PREFILL_TOKENS, SideBySide, engine_config
from blink_numba.runtime import EngineConfig, EngineProcess

SETTLE_S = 1.0
P99_RATIO, THROUGHPUT_RATIO = 1.01, 0.99  # targets of the resident scheduler


def run(
    model: str = "smollm2",
    strategies: str = "faf,tail,while,host,host-pipelined",
    burners: int = 0,
    batch: int = 16,
    prompt: int = 128,
    tokens: int = 128,
    seconds: float = 5.0,
    backend: str = "cuda",
    reserve_core: bool = True,
) -> list[Row]:
    """Step, TTFT, TPOT and throughput, idle against CPU burners, for each launch strategy.

    Parameters
    ----------
    model : str
        A shape; weights are random.
    strategies : str
        Names with commas between. The ``cpu`` backend has one, itself.
    burners : int
        CPU-bound processes under load; 0: two a core.
    """
    client_cores, cores = reserved_core(reserve_core)
    count = burners or 2 * len(os.sched_getaffinity(0))
    names = [backend] if backend == "cpu" else [name.strip() for name in strategies.split(",")]
    load = Load(concurrency=batch, prompt=prompt, tokens=tokens, warmup_s=SETTLE_S, seconds=seconds)
    rows: list[Row] = []
    with (
        ClientProcess(client_cores) as client,
        _on(cores),
        SideBySide(_configs(model, names, backend, load)) as engines,
    ):
        for name in names:
            with engines.running(name) as engine:
                idle, loaded = _measure(client, engine, load, lambda: Burners(count, cores))
            extra: dict[str, Any] = {"model": model, "batch": batch, "burners": count, "cores": len(cores)}
            rows += phase_rows(f"{name}/idle", idle, **extra)
            rows += phase_rows(f"{name}/loaded", loaded, **extra)
            rows += ratio_rows(name, idle, loaded, **extra)
    return rows


@contextlib.contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    """Run this process, and every thread it starts, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _configs(model: str, names: list[str], backend: str, load: Load) -> dict[str, EngineConfig]:
    length = load.prompt + load.tokens
    return {
        name: engine_config(
            model, load.concurrency, length, backend=backend, launch="faf" if backend == "cpu" else name,
            prefill_tokens=PREFILL_TOKENS,
        )
        for name in names
    }  # fmt: skip


def _measure(
    client: ClientProcess, engine: EngineProcess, load: Load, burning: Callable[[], Burners]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the load twice on an engine; what the client measured idle and loaded."""
    client.ask(attach=engine.ring_name)
    here = replace(load, vocab_size=engine.spec.vocab_size)
    idle = client.measure(here)
    with burning():
        loaded = client.measure(here)
    client.ask(detach=True)
    return idle, loaded


def phase_rows(case: str, measured: dict[str, Any], **extra: Any) -> list[Row]:
    """P50 and P99 of step, TTFT and TPOT (P99.9 beside them), and tokens a second."""
    rows = []
    for name, unit in (("step", "us"), ("ttft", "ms"), ("tpot", "ms")):
        found = quantiles(np.array(measured[f"{name}_{unit}"]))
        shared = {**extra, "mean": found["mean"], "samples": found["count"]}
        rows.append(Row(f"{case}/{name}_{unit}", found["p50"], unit, better="lower", **shared))
        rows.append(
            Row(f"{case}/{name}_p99_{unit}", found["p99"], unit, better="lower", p999=found["p999"], **shared)
        )
    lost = measured["lost_entries"]
    rows.append(
        Row(f"{case}/tok_s", measured["tokens"] / measured["seconds"], "tok/s", lost_entries=lost, **extra)
    )
    return rows


def ratio_rows(name: str, idle: dict[str, Any], loaded: dict[str, Any], **extra: Any) -> list[Row]:
    """Loaded over idle: P99 of step, TTFT and TPOT, and throughput."""
    resident = name == "faf"  # the paper's, and the default: the others have no target

    def p99(measured: dict[str, Any], key: str) -> float:
        return quantiles(np.array(measured[key]))["p99"]

    def ratio(key: str) -> float:
        return p99(loaded, key) / p99(idle, key)

    return [
        Row(
            f"{name}/p99_ratio", ratio("step_us"), "ratio", P99_RATIO if resident else None, "lower", **extra
        ),
        Row(
            f"{name}/throughput_ratio", loaded["tokens"] / idle["tokens"], "ratio",
            THROUGHPUT_RATIO if resident else None, **extra,
        ),
        Row(f"{name}/ttft_p99_ratio", ratio("ttft_ms"), "ratio", better="lower", **extra),
        Row(f"{name}/tpot_p99_ratio", ratio("tpot_ms"), "ratio", better="lower", **extra),
    ]  # fmt: skip
