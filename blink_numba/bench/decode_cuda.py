"""Decoding on a GPU: the resident scheduler's step beside the same graph alone and the memory's floor.

All three in one process, of one engine: requests go through the ring and end with their
length, so the batch stays constant; the graph is launched back to back at one context, and
compared with the steps around it; the floor is the bytes a step must read over the rate at which
this GPU copies.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from blink_numba.bench.flight import FlightTail, decode_steps, prefill_rate, quantiles
from blink_numba.bench.report import Row, median_row
from blink_numba.bench.resident import answer_all, engine, engine_config, port_of, random_prompts
from blink_numba.models import ModelConfig, load_model
from ring import layout as at

# model: (prompt, answer): the contexts of the peers' figures
LENGTHS = {"smollm2": (128, 384), "llama3-8b": (512, 256)}
DEFAULT_LENGTHS = (256, 256)
# Attention goes by chunks of 128 positions: what is compared lies amid a chunk, where a step more
# or less costs the same.
CHUNK, NEAR = 128, 16  # positions; steps on either side of the context compared at
GRAPH_LAUNCHES, COPY_BYTES = 200, 1 << 30
ANSWER_S = 60.0
STEP_OVER_GRAPH_US, STEP_OVER_GRAPH_RATIO = 5.0, 1.005  # targets at batch 16


def measure(
    models: Sequence[str] = ("smollm2", "llama3-8b"),
    batches: Sequence[int] = (1, 16, 64),
    repeats: int = 3,
    batch_invariant: bool = False,
) -> list[Row]:
    """Rows of every model: step, graph and floor of each batch, overheads, prefill rate."""
    rows = []
    copied = copy_rate()
    rows.append(median_row("copy_rate", [each / 1e9 for each in copied], "GB/s"))
    for model in models:
        rows += _measure_model(model, sorted(batches), repeats, statistics.median(copied), batch_invariant)
    return rows


def _measure_model(
    model: str, batches: Sequence[int], repeats: int, rate: float, batch_invariant: bool
) -> list[Row]:
    from blink_numba.runtime.local import make_backend

    prompt, tokens = LENGTHS.get(model, DEFAULT_LENGTHS)
    context = compared_context(prompt, tokens)
    config = engine_config(model, batches[-1], prompt + tokens, batch_invariant=batch_invariant)
    backend: Any = make_backend(config, lambda line: None)
    graphs = {batch: graph_times(backend, batch, context, repeats) for batch in batches}
    rows: list[Row] = []
    with engine(model, batches[-1], prompt + tokens, prepared=backend) as running, port_of(running) as port:
        vocab_size, flight = running.spec.vocab_size, running.ring.view.flight
        answer_all(port, random_prompts(batches[-1], prompt, vocab_size), 8, ANSWER_S)  # warms up
        for batch in batches:
            times = []
            for repeat in range(repeats):
                tail = FlightTail(flight)
                answer_all(port, random_prompts(batch, prompt, vocab_size, repeat), tokens, ANSWER_S)
                times.append(decode_steps(tail.entries(), batch))
            floor = step_bytes(load_model(model, dummy=True).config, batch, context) / rate * 1e6
            rows += batch_rows(model, batch, times, graphs[batch], floor, context, context - prompt)
        rows.append(_prefill_row(port, flight, model, vocab_size, batches[-1], prompt, repeats))
        retries = float(running.ring.view.status[at.S_RETRIES])
        rows.append(Row(f"{model}/launch_retries", retries, "count", better="lower"))
    return rows


def compared_context(prompt: int, tokens: int) -> int:
    """The context amid a chunk of attention that is next to the middle of an answer's."""
    middle = prompt + tokens // 2
    return middle // CHUNK * CHUNK + CHUNK // 2


def batch_rows(model: str, batch: int, steps: Sequence[np.ndarray], graphs: Sequence[float], floor: float,
               context: int, generated: int) -> list[Row]:  # fmt: skip
    """Step, graph, floor and tokens a second of a batch; overheads and their targets at batch 16.

    Parameters
    ----------
    steps : sequence of float64[n]
        Times of the steps of each repeat, µs, from the first token's on.
    graphs : sequence of float
        Times of the graph alone at `context`, µs.
    generated : int
        Tokens that a request has when it is at `context`.
    """
    near = [times[max(generated - NEAR, 0) : generated + NEAR] for times in steps]
    found = [quantiles(times) for times in near]
    whole = [quantiles(times) for times in steps]
    step_us, graph_us = statistics.median(each["p50"] for each in found), statistics.median(graphs)
    p99 = statistics.median(each["p99"] for each in whole)
    extra: dict[str, Any] = {"batch": batch, "context": context}
    case = f"{model}/b{batch}"
    rows = [
        median_row(f"{case}/step_us", [each["p50"] for each in found], "us", better="lower", p99=p99,
                   samples=whole[0]["count"], mean=statistics.median(each["mean"] for each in whole),
                   **extra),
        median_row(f"{case}/graph_us", graphs, "us", better="lower", **extra),
        Row(f"{case}/floor_us", floor, "us", better="lower", **extra),
        Row(f"{case}/tok_s", batch / step_us * 1e6, "tok/s", **extra),
    ]  # fmt: skip
    if batch == 16:
        over, ratio = step_us - graph_us, step_us / graph_us
        small = model == "smollm2"  # a short step: microseconds count; a long one: the share
        rows.append(
            Row(
                f"{model}/step_over_graph_us",
                over,
                "us",
                STEP_OVER_GRAPH_US if small else None,
                "lower",
                **extra,
            )
        )
        rows.append(
            Row(f"{model}/step_over_graph_ratio", ratio, "ratio", None if small else STEP_OVER_GRAPH_RATIO,
                "lower", **extra)
        )  # fmt: skip
        rows.append(Row(f"{model}/step_over_floor_ratio", step_us / floor, "ratio", better="lower", **extra))
    return rows


def _prefill_row(port: Any, flight: np.ndarray, model: str, vocab_size: int, count: int, prompt: int,
                 repeats: int) -> Row:  # fmt: skip
    rates = []
    for repeat in range(repeats):
        tail = FlightTail(flight)
        answer_all(port, random_prompts(count, prompt, vocab_size, 100 + repeat), 2, ANSWER_S)
        rates.append(prefill_rate(tail.entries()))
    return median_row(f"{model}/prefill_tok_s", rates, "tok/s", prompts=count, prompt=prompt)


def step_bytes(config: ModelConfig, batch: int, context: int) -> int:
    """Bytes a decode step must read: every matrix once (embeddings only by rows), keys and values."""
    shapes = config.expected_tensors()
    weights = sum(math.prod(shape) for name, shape in shapes.items() if name != "model.embed_tokens.weight")
    if config.tie_word_embeddings:
        weights += math.prod(shapes["model.embed_tokens.weight"])
    cache = 2 * config.num_layers * config.num_kv_heads * config.head_dim * context * batch
    return 2 * (weights + cache)


# --- on the device ---


def copy_rate(repeats: int = 7) -> list[float]:
    """Bytes a second, read and written, of copies within the GPU's memory."""
    from graphs._cuda import check, cuda, driver

    source, target = (cuda.device_array(COPY_BYTES, np.uint8) for _ in range(2))
    pointers = [int(each.__cuda_array_interface__["data"][0]) for each in (target, source)]

    def copy(stream: Any) -> None:
        check(driver.cuMemcpyDtoDAsync(*pointers, COPY_BYTES, int(stream)), "copying device memory")

    milliseconds = _timed(copy, 4, repeats)
    return [2 * COPY_BYTES / (each / 1e3) for each in milliseconds]


def graph_times(backend: Any, batch: int, context: int, repeats: int) -> list[float]:
    """Microseconds of a decode graph launched back to back by the host, every seat at `context`.

    The scheduler does not run yet; the step buffer is left as new.
    """
    from graphs._cuda import cuda
    from graphs.grid import EXECS
    from graphs.step_io import format_step, step_view, step_words

    spec = backend.spec
    words = np.zeros(step_words(spec), np.int64)
    format_step(words, spec)
    fresh = words.copy()
    io = step_view(words)
    io.decode_rows[:batch] = np.arange(batch)
    io.seat_token[:batch] = 7
    io.seat_position[:batch] = context - 1
    blocks = np.arange(batch * spec.blocks_per_seat) % spec.blocks
    io.block_table[: len(blocks)] = np.random.default_rng(3).permutation(blocks)
    backend.engine.io.copy_to_device(words)
    cuda.synchronize()
    graph = spec.decode_batches.index(batch)
    turn = iter(range(1 << 30))
    milliseconds = _timed(
        lambda stream: backend.graphs.launch(graph, next(turn) % EXECS, stream), GRAPH_LAUNCHES, repeats + 1
    )
    backend.engine.io.copy_to_device(fresh)
    cuda.synchronize()
    return [each * 1e3 for each in milliseconds[1:]]  # the first one warms up


def _timed(enqueue: Any, count: int, repeats: int) -> list[float]:
    """Milliseconds of one of `count` equal pieces of work on a stream, `repeats` times."""
    from graphs._cuda import cuda, new_stream

    stream = new_stream()
    times = []
    for _ in range(repeats):
        start, stop = cuda.event(), cuda.event()
        start.record(stream)
        for _ in range(count):
            enqueue(stream)
        stop.record(stream)
        stop.synchronize()
        times.append(cuda.event_elapsed_time(start, stop) / count)
    return times
