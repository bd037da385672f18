"""The scheduler's scan in a loop, timed on the device."""

from __future__ import annotations

import numpy as np

from graphs._cuda import cuda, new_stream
from graphs.step_io import EngineSpec
from ring.atomics import lane_barrier, now_ns
from ring.layout import RingGeometry
from ring.views import ring_view
from scheduler import state as sc
from scheduler.claim import scan

LANES = 256
SPEC = EngineSpec(
    seats=1, decode_batches=(1,), prefill_tokens=(16,), prefill_sequences=1, block_size=16, blocks=1,
    blocks_per_seat=1, max_model_len=16, vocab_size=2, eos_ids=(),
)  # fmt: skip


@cuda.jit
def scan_loop(words, narrow, state_words, scans, took):
    """`scans` scans with a barrier after each, as a turn has; nanoseconds into `took`."""
    lane = cuda.threadIdx.x
    ring = ring_view(words, narrow)
    state = sc.state_view(state_words)
    lane_barrier()
    began = now_ns()
    for _ in range(scans):
        scan(ring, state, lane, LANES)
        lane_barrier()
    if lane == 0:
        took[0] = now_ns() - began


def time_scans(
    words: np.ndarray, geometry: RingGeometry, placement: int, on_device: bool, scans: int, repeats: int
) -> list[int]:
    """Nanoseconds of `scans` scans of an empty ring, `repeats` times after one that does not count."""
    from blink_numba.runtime.cuda import Registered

    stream = new_stream()
    state = cuda.to_device(sc.make_state(SPEC, geometry, placement=placement))
    took = cuda.to_device(np.zeros(1, np.int64))
    registered = None
    if on_device:
        ring = cuda.to_device(words)
        narrow = ring.view(np.int32)
    else:
        registered = Registered(words)
        ring, narrow = registered.words, registered.narrow
    cuda.synchronize()
    times = []
    for _ in range(repeats + 1):
        scan_loop[1, LANES, stream](ring, narrow, state, scans, took)
        stream.synchronize()
        times.append(int(took.copy_to_host()[0]))
    if registered is not None:
        registered.close()
    return times[1:]
