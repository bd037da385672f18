"""Decode steps of a constant batch, by the scheduler's own stamps.

On a GPU beside the same graph alone and the memory's floor (`decode_cuda`); on the CPU tokens a
second, prefill rate, the scheduler's share of a step and resident memory. Requests go through
the ring.
"""

from __future__ import annotations

import statistics
from typing import Annotated

import numpy as np
import psutil
import typer

from blink_numba.bench.flight import FlightTail, decode_steps, prefill_rate, quantiles
from blink_numba.bench.report import Row, median_row
from blink_numba.bench.resident import answer_all, engine_config, port_of, random_prompts
from blink_numba.runtime import EngineConfig, EngineProcess, LocalEngine
from blink_numba.runtime.probe import cuda_usable
from rdma import FrontEndPort, ShmTransport
from ring.memory import RingMemory

PROMPT, TOKENS = 64, 48
LONG_PROMPT, PREFILL_TOKENS = 256, 256
ANSWER_S = 300.0
# of smollm2 on two cores
TARGETS = {"smollm2/b1/tok_s": 20.0, "smollm2/b8/tok_s": 80.0, "smollm2/prefill/tok_s": 150.0,
           "smollm2/b1/sched_share": 0.01, "rss_gb": 1.5}  # fmt: skip


def run(
    backend: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    model: Annotated[
        str, typer.Option(help="Models, commas between; by default what the backend serves.")
    ] = "",
    batch: Annotated[str, typer.Option(help="Batches, commas between.")] = "",
    repeats: Annotated[int, typer.Option(min=1, help="Repeats; the median counts.")] = 3,
    threads: Annotated[int | None, typer.Option(help="Threads of the CPU engine.")] = None,
    batch_invariant: Annotated[bool, typer.Option(help="CUDA: answers do not depend on the batch.")] = False,
) -> list[Row]:
    """Tokens a second by model and batch, prefill rate, and what scheduling costs.

    Parameters
    ----------
    model : str
        smollm2 and, on a GPU, llama3-8b by default.
    batch : str
        1, 16 and 64 on a GPU, 1 and 8 on the CPU by default.
    """
    on_gpu = backend == "cuda" or (backend == "auto" and cuda_usable() is None)
    models = [name for name in model.split(",") if name] or ["smollm2", *["llama3-8b"] * on_gpu]
    batches = sorted(int(size) for size in batch.split(",") if size) or [1, *((16, 64) if on_gpu else (8,))]
    if on_gpu:
        from blink_numba.bench.decode_cuda import measure

        return measure(models, batches, repeats, batch_invariant)
    return [row for name in models for row in _measure_cpu(name, batches, repeats, threads)]


def _row(case: str, values: list[float], unit: str, better: str = "higher", **extra: float) -> Row:
    return median_row(case, values, unit, TARGETS.get(case), better, **extra)  # type: ignore[arg-type]


def _measure_cpu(model: str, batches: list[int], repeats: int, threads: int | None) -> list[Row]:
    """An engine in a process of its own, as it serves, so that its memory is its own too."""
    length = max(PROMPT + TOKENS, LONG_PROMPT + 16)
    shape = engine_config(model, batches[-1], length, backend="cpu", prefill_tokens=PREFILL_TOKENS)
    config = EngineConfig(**{**vars(shape), "dummy": False, "threads": threads})
    rows: list[Row] = []
    with EngineProcess.spawn(config) as process:
        process.wait_ready()
        with RingMemory.attach(config.ring_name) as memory, FrontEndPort(ShmTransport(memory)) as port:
            flight, vocab = memory.view.flight, port.share.ring.vocab_size
            answer_all(port, random_prompts(batches[-1], PROMPT, vocab), 4, ANSWER_S)  # warms up
            for size in batches:
                steps = [
                    quantiles(_decode_once(port, flight, random_prompts(size, PROMPT, vocab, repeat), size))
                    for repeat in range(repeats)
                ]
                p50 = [each["p50"] for each in steps]
                case, p99 = f"{model}/b{size}", statistics.median(each["p99"] for each in steps)
                rows.append(_row(f"{case}/tok_s", [size / each * 1e6 for each in p50], "tok/s",
                                 step_us=statistics.median(p50), p99_step_us=p99))  # fmt: skip
            prefills = [_prefill_once(port, flight, vocab, repeat) for repeat in range(repeats)]
            rows.append(_row(f"{model}/prefill/tok_s", prefills, "tok/s", prompt=LONG_PROMPT))
        resident = psutil.Process(process.pid).memory_info().rss / 1e9
        rows.append(_row("rss_gb", [resident], "GB", "lower"))
    step_us = next(row.extra["step_us"] for row in rows)
    spent = _scheduling_us(step_us, repeats)
    shares, spent_us = [each / step_us for each in spent], statistics.median(spent)
    case = f"{model}/b{batches[0]}/sched_share"
    rows.append(_row(case, shares, "ratio", "lower", scheduling_us=spent_us, step_us=step_us))
    return rows


def _decode_once(port: FrontEndPort, flight: np.ndarray, prompts: list[np.ndarray], batch: int) -> np.ndarray:
    """Times of decode steps of this batch, µs."""
    tail = FlightTail(flight)
    answer_all(port, prompts, TOKENS, ANSWER_S)
    return decode_steps(tail.entries(), batch)


def _prefill_once(port: FrontEndPort, flight: np.ndarray, vocab_size: int, seed: int) -> float:
    """Prompt tokens a second of two long prompts, one prefill each."""
    tail = FlightTail(flight)
    answer_all(port, random_prompts(2, LONG_PROMPT, vocab_size, 100 + seed), 2, ANSWER_S)
    return prefill_rate(tail.entries())


def _scheduling_us(step_us: float, repeats: int) -> list[float]:
    """What a step of one request takes beyond the engine's time: scheduler and hand-over, µs.

    The engine is replaced by one that waits for as long as the model's step takes, so that the
    scheduler sleeps between its looks as it does in earnest.
    """
    from blink_numba.bench.null_cpu import null_backend

    config = engine_config("tiny", 1, 128, backend="cpu", prefill_tokens=64)
    times = []
    prepared = null_backend(config, int(step_us * 1e3))
    with LocalEngine(config, backend=prepared) as engine, port_of(engine) as port:
        flight, vocab_size = engine.ring.view.flight, engine.spec.vocab_size
        for repeat in range(repeats):
            tail = FlightTail(flight)
            answer_all(port, random_prompts(1, 16, vocab_size, repeat), TOKENS, ANSWER_S)
            times.append(quantiles(decode_steps(tail.entries(), 1))["p50"] - step_us)
    return times
