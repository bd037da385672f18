"""A CPU engine whose steps take a given time and compute nothing: the rest is the scheduler's."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from blink_numba.models import load_model
from blink_numba.runtime import EngineConfig
from blink_numba.runtime.cpu import CpuBackend
from graphs.launcher import engine_stopped, launcher_view, peek, retire, stop_engine
from graphs.step_io import DONE, TICKET, EngineSpec, step_view
from ring.atomics import load_relaxed, now_ns, pause, store_release
from ring.jit import njit
from scheduler.policy import named_policy


@njit
def _answer_steps(io_words, launcher_words, step_ns):
    """Finish every step `step_ns` after it was taken; each token is 0."""
    io, launcher = step_view(io_words), launcher_view(launcher_words)
    taken, looks = 0, 0
    while not engine_stopped(launcher):
        executable = peek(launcher, taken)
        if executable < 0:
            pause(looks)
            looks += 1
            continue
        began = now_ns()
        io.out_token[:] = 0
        while now_ns() - began < step_ns:
            pause(0)
        # pairs with the scheduler's acquire of DONE: the tokens are there
        store_release(io.control, DONE, load_relaxed(io.control, TICKET))
        retire(launcher, executable)
        taken += 1
        looks = 0


class _NullEngine:
    """Stands where `CpuEngine` stands."""

    def __init__(self, spec: EngineSpec, step_ns: int) -> None:
        self.spec = spec
        self._step_ns = step_ns
        self._launcher: np.ndarray | None = None
        self._thread: threading.Thread | None = None

    def start(self, io_words: np.ndarray, table_words: np.ndarray, launcher_words: np.ndarray) -> None:
        self._launcher = launcher_words
        arguments = (io_words, launcher_words, self._step_ns)
        self._thread = threading.Thread(target=_answer_steps, args=arguments, daemon=True)
        self._thread.start()

    def stop(self, deadline_s: float = 10.0) -> None:
        if self._launcher is not None and self._thread is not None:
            stop_engine(launcher_view(self._launcher))
            self._thread.join(deadline_s)


def null_backend(config: EngineConfig, step_ns: int) -> Any:
    """The CPU backend of a configuration for ``tiny``, its engine replaced by one that only waits."""
    backend: Any = CpuBackend(load_model("tiny"), config, named_policy(config.policy), lambda line: None)
    backend._engine = _NullEngine(backend.spec, step_ns)
    return backend
