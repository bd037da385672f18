"""What one scan for new requests costs: the scheduler's own, by 256 lanes, nothing being new.

Records or doorbells, in the GPU's memory or in registered host memory.
"""

from __future__ import annotations

import mmap

import numpy as np

from blink_numba.bench.report import Row, median_row
from ring import layout as at
from ring.layout import RingGeometry
from ring.views import format_ring

# case: (placement, whether the ring lies in the GPU's memory, target in µs)
CASES = {
    "records_device_us": (at.DEVICE_PLACEMENT, True, 1.2),
    "records_host_us": (at.DEVICE_PLACEMENT, False, None),
    "doorbell_host_us": (at.HOST_PLACEMENT, False, 1.5),
    "doorbell_device_us": (at.HOST_PLACEMENT, True, None),
}


def run(slots: int = 4096, scans: int = 500, repeats: int = 7) -> list[Row]:
    """Microseconds a scan of the whole ring."""
    from blink_numba.bench.scan_kernels import time_scans

    geometry = RingGeometry(slots=slots, arena_tokens=64, log_entries=2, flight_entries=2)
    rows = []
    for case, (placement, on_device, target) in CASES.items():
        words = _page_aligned(geometry.words())
        format_ring(words, geometry)
        nanoseconds = time_scans(words, geometry, placement, on_device, scans, repeats)
        times = [each / scans / 1e3 for each in nanoseconds]
        rows.append(median_row(case, times, "us", target, "lower", slots=slots, lanes=256))
    return rows


def _page_aligned(words: int) -> np.ndarray:
    """Zeroed host memory that can be registered."""
    return np.frombuffer(mmap.mmap(-1, 8 * words), np.int64)
