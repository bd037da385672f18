"""The CUDA backend with its scheduler on the host: what the resident scheduler is measured against.

The same turn of the scheduler and the same captured steps; a CPU thread that holds no GIL
launches each step through the driver. It waits for the step (``host``), or launches the next decode step
behind it and looks at its results while that one computes (``host-pipelined``, `scheduler.ahead`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from blink_numba.engines.cuda import CudaEngine
from blink_numba.engines.limits import EngineLimits
from blink_numba.models import Model
from blink_numba.runtime.config import EngineConfig
from blink_numba.runtime.cuda import engine_limits
from graphs import host_launch
from graphs._cuda import driver, new_stream
from graphs.capture import GraphSet
from graphs.grid import shapes
from graphs.step_io import EngineSpec, step_view
from ring.jit import njit
from ring.layout import RingGeometry
from ring.views import RingView
from scheduler import state as sc
from scheduler.build import NARROW, POINTERS, set_up
from scheduler.loops import host
from scheduler.policy import Policy, install, named_policy
from scheduler.policy_check import WORDS, pointers
from scheduler.recovery import abandon

LAUNCHER_WORDS = 8
POLL_SPINS = 4096  # pipelined: looks at the completion flag between two scans, about 10 µs
_NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY


@cache
def compiled_loop(ahead: bool = False) -> Any:
    """A loop of `scheduler.loops.host` for any policy; the driver's functions were made known before."""
    run = host.run_pipelined if ahead else host.run
    compiled = njit(run.py_func, cache=False)  # holds addresses of this process
    compiled.compile((WORDS, NARROW, WORDS, WORDS, WORDS, WORDS, *POINTERS))
    compiled.disable_compile()  # so that functions are passed as the pointers of this signature
    return compiled


class CudaHostBackend:
    """Engine and graphs on the GPU, the scheduler on a thread of this process.

    Parameters
    ----------
    model : Model
    config : EngineConfig
    policy : Policy
    progress : callable
        Takes a line of text at each stage of the preparation.

    Attributes
    ----------
    spec : EngineSpec
    name : str
    ahead : bool
        Whether decode steps are launched ahead.
    """

    name = "cuda"

    def __init__(
        self, model: Model, config: EngineConfig, policy: Policy, progress: Callable[[str], None]
    ) -> None:
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # read when the driver starts
        self._config, self._policy = config, policy
        self.ahead = config.launch == "host-pipelined"
        self._stream = new_stream()
        progress(f"loading {model.name} onto the GPU and compiling its kernels")
        self.engine = self._make_engine(model, engine_limits(model, config))
        self.spec: EngineSpec = self.engine.spec
        progress(f"capturing {len(shapes(self.spec))} graphs")
        self.graphs = GraphSet(self.engine, self._stream, device_launch=False)
        self._table = self.graphs.table()
        progress(f"compiling the scheduler (policy {policy.name}, launches {config.launch})")
        host_launch.load_driver()
        self._functions = pointers(policy)
        for name in config.preload:
            pointers(named_policy(name))
        compiled_loop(self.ahead)
        self._core = np.zeros(LAUNCHER_WORDS, np.int64)
        self._core[host_launch.L_STREAM] = int(self._stream)
        self._core[host_launch.L_CONTEXT] = host_launch.current_context()
        self._state: np.ndarray | None = None
        self._words: np.ndarray | None = None
        self._thread: threading.Thread | None = None
        self._verdict: int | None = None
        self._sticky: str | None = None

    def _make_engine(self, model: Model, limits: EngineLimits) -> Any:
        """What the scheduler launches; another engine's backend says another one here."""
        invariant = self._config.batch_invariant
        return CudaEngine(model, limits, batch_invariant=invariant, host_io=True, ahead=self.ahead)

    def new_state(self, geometry: RingGeometry, placement: int) -> np.ndarray:
        """A fresh scheduler state for this engine; it is the one that `start` runs on."""
        self._state = sc.make_state(
            self.spec, geometry, placement=placement, step_deadline_s=self._config.step_deadline_s,
            poll_spins=POLL_SPINS if self.ahead else 0,
        )  # fmt: skip
        set_up(self._state, self._policy)
        return self._state

    def start(self, words: np.ndarray, ring: RingView) -> None:
        """Start the scheduler's thread on a ring."""
        self._words = words
        self._start_thread()

    def _start_thread(self) -> None:
        self._verdict = None
        self._thread = threading.Thread(target=self._run, name="blink-numba-scheduler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        words, state, io = self._words, self._state, self.engine.host_io
        loop = compiled_loop(self.ahead)
        assert words is not None
        assert state is not None
        self._verdict = int(
            loop(words, words.view(np.int32), state, io, self._table, self._core, *self._functions)
        )

    def verdict(self) -> int | None:
        """The scheduler's last verdict once it has returned, None while it runs."""
        return self._verdict

    def prepare(self, policy: Policy) -> None:
        """Compile a policy's functions, while the scheduler runs; for `resume`."""
        pointers(policy)

    def resume(self, policy: Policy) -> None:
        """Run the scheduler again after it parked, with this policy's functions."""
        assert self._state is not None
        install(sc.state_view(self._state), policy)
        self._policy, self._functions = policy, pointers(policy)
        self._start_thread()

    def explain(self) -> str | None:
        """The CUDA error that ended the context, None if the context lives."""
        return self._sticky

    def restart(self, deadline_s: float) -> bool:
        """Go on after a fault, in place. False if a step still runs, or after a sticky CUDA error."""
        assert self._state is not None
        if not self.join(deadline_s) or not self._idle(deadline_s):
            return False
        abandon(sc.state_view(self._state), step_view(self.engine.host_io))
        self._start_thread()
        return True

    def _idle(self, deadline_s: float) -> bool:
        """Wait until the stream has done everything, well. Whether it did."""
        give_up = time.monotonic() + deadline_s
        while True:
            (code,) = driver.cuStreamQuery(int(self._stream))
            if code == driver.CUresult.CUDA_SUCCESS:
                return True
            if code != _NOT_READY:
                self._sticky = code.name
                return False
            if time.monotonic() >= give_up:
                return False
            time.sleep(0.002)

    def join(self, deadline_s: float) -> bool:
        """Wait for the scheduler to return. Whether it did."""
        if self._thread is None:
            return True
        self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def read_state(self) -> np.ndarray:
        """A copy of the scheduler's state; only while it does not run."""
        assert self._state is not None
        return self._state.copy()

    def close(self) -> None:
        """Free what the GPU holds; the scheduler has returned."""
        if self.join(0.0) and self._idle(1.0):
            self.graphs.close()
