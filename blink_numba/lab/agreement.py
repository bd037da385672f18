"""Do simulator and engine agree: in every decision, and in how long things take.

`decisions` replays a recording on the compiled step, and on its plain Python copy if asked;
`measure_table` makes a table of step times out of recordings; the bench ``agreement`` compares
predicted and measured medians.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from blink_numba.lab.live import Measured, run_live
from blink_numba.lab.step_times import Table
from graphs.step_io import EngineSpec
from ring.layout import RingGeometry
from ring.python_copy import PythonCopy
from ring.recorder import Entry, Event
from scheduler.policy import Policy
from scheduler.simulator import Requests
from scheduler.simulator.replay import Difference, replay

SECOND = 1_000_000_000


def decisions(measured: Measured, spec: EngineSpec, geometry: RingGeometry, policy: Policy, *,
              plain: PythonCopy | None = None) -> Difference | None:  # fmt: skip
    """The first decision that a replay makes differently; None if it makes all the same.

    Parameters
    ----------
    plain : PythonCopy, optional
        Replay on this copy's plain Python instead of the compiled step.
    """
    return replay(measured.recording, measured.asked, spec, geometry, policy, copy=plain)


def measure_table(ring_name: str, spec: EngineSpec, *, name: str, source: str, vocab_size: int = 256,
                  steps: int = 24, repeats: int = 3, pads: bool = True) -> Table:  # fmt: skip
    """Step times of a running engine: each decode batch at two contexts, each prefill size once.

    Parameters
    ----------
    ring_name : str
        Of an engine nobody else uses meanwhile.
    steps : int
        Tokens of each answer; the median of their steps counts.
    pads : bool
        As in `blink_numba.lab.step_times.Table`.
    """
    short = max(spec.max_model_len // 16, 1)
    share = spec.blocks * spec.block_size // spec.seats
    long = max(min(spec.max_model_len // 2, share) - steps - 1, short + 1)
    decode: dict[tuple[int, int], list[float]] = defaultdict(list)
    for batch in spec.decode_batches:
        for prompt in (short, long):
            for repeat in range(repeats):
                workload = Requests.of(np.zeros(batch), prompt, steps)
                measured = run_live(ring_name, workload, vocab_size=vocab_size, seed=repeat)
                decode[batch, prompt] += _decode_us(measured.recording, batch)
    contexts = [0.0, float(long * spec.seats)]
    rows = []
    for batch in spec.decode_batches:
        # a line through the two contexts of this batch, put onto the common axis
        low, high = (float(np.median(decode[batch, prompt])) for prompt in (short, long))
        slope = max((high - low) / (batch * (long - short)), 0.0)
        rows.append([max(low + slope * (c - batch * short), low / 2) for c in contexts])
    sizes, prefill = _measure_prefills(ring_name, spec, vocab_size, repeats)
    batches = [float(b) for b in spec.decode_batches]
    if len(batches) == 1:
        batches, rows = [*batches, batches[0] + 1], [*rows, *rows]
    return Table(name, source, batches, contexts, rows, sizes, [0.0, float(spec.max_model_len)], prefill,
                 {k: v for k, v in spec.__dict__.items() if k != "eos_ids"}, pads)  # fmt: skip


def _measure_prefills(ring_name: str, spec: EngineSpec, vocab_size: int,
                      repeats: int) -> tuple[list[float], list[list[float]]]:  # fmt: skip
    sizes = [size for size in spec.prefill_tokens if size < spec.max_model_len] or [spec.max_model_len // 2]
    table = []
    for size in sizes:
        times = []
        for repeat in range(repeats + 1):
            workload = Requests.of([0], size, 2)
            measured = run_live(ring_name, workload, vocab_size=vocab_size, seed=repeat)
            times += _prefill_us(measured.recording, size)
        table.append([float(np.median(times))] * 2)
    if len(sizes) == 1:
        half = [value / 2 for value in table[0]]
        return [sizes[0] / 2, float(sizes[0])], [half, table[0]]
    return [float(size) for size in sizes], table


def _decode_us(recording: Sequence[Entry], batch: int) -> list[float]:
    """From one decode's launch to the next one's, where both had `batch` rows; of the last run only."""
    pairs = pairwise(recording)
    return [
        (after.launched_ns - before.launched_ns) / 1e3
        for before, after in pairs
        if before.event == after.event == Event.DECODE and before.arguments[1] == after.arguments[1] == batch
    ]


def _prefill_us(recording: Sequence[Entry], tokens: int) -> list[float]:
    """From a prefill's launch to the decode's after it."""
    pairs = pairwise(recording)
    return [
        (after.launched_ns - before.launched_ns) / 1e3
        for before, after in pairs
        if before.event == Event.PREFILL and after.event == Event.DECODE and before.arguments[1] == tokens
    ]
