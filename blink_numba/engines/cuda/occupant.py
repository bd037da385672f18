"""A kernel that takes one multiprocessor whole, as the resident scheduler does.

Products are timed beside it: an algorithm that fills all multiprocessors exactly once is the
fastest on an idle GPU and runs in two waves beside a scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from blink_numba.engines.cuda._cuda import cuda
from graphs._cuda import driver, new_stream
from graphs.capture import allow_shared_memory, load_kernel
from ring.atomics import load_relaxed, now_ns, store_relaxed

DEADLINE_NS = 5_000_000_000
STARTED, END = 0, 8  # words, each on a line of its own


@cuda.jit
def occupy(words, deadline_ns):
    """Stay until the host sets END, at most `deadline_ns`."""
    began = now_ns()
    store_relaxed(words, STARTED, 1)
    while load_relaxed(words, END) == 0 and now_ns() - began < deadline_ns:
        cuda.nanosleep(np.uint32(500))


class Occupant:
    """The kernel, loaded and ready: enter `resident` to have it run.

    Nothing may be loaded or freed, and no other stream waited for without a deadline, while it runs.
    """

    def __init__(self) -> None:
        self._stream = new_stream()
        self._words = cuda.mapped_array(16, np.int64)
        self._words[:] = 0
        load_kernel(occupy, self._words, DEADLINE_NS)
        self._shared = int(cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        allow_shared_memory(occupy, self._shared)

    @contextmanager
    def resident(self) -> Iterator[None]:
        """One multiprocessor is taken in here: its shared memory, so that no other block fits."""
        self._words[:] = 0
        occupy[1, 1, self._stream, self._shared](self._words, DEADLINE_NS)
        while self._words[STARTED] == 0 and driver.cuStreamQuery(int(self._stream))[0] != 0:
            pass  # ends at the latest with the kernel's own deadline
        try:
            yield
        finally:
            self._words[END] = 1
            self._stream.synchronize()
