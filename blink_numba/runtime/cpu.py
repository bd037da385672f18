"""The CPU backend: engine threads and a scheduler thread that never return to Python."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from blink_numba.engines.cpu import CpuEngine
from blink_numba.engines.limits import EngineLimits
from blink_numba.models import Model
from blink_numba.runtime.compile_ahead import compiling_ahead
from blink_numba.runtime.config import EngineConfig
from graphs.grid import EXECS, make_table, shapes
from graphs.launcher import launcher_view, make_launcher, open_window, stop_engine
from graphs.step_io import DONE, TICKET, EngineSpec, format_step, step_view, step_words
from ring import layout as at
from ring.atomics import load_acquire
from ring.jit import njit
from ring.views import RingView
from scheduler.build import CpuLoop, cpu_loop, set_up
from scheduler.policy import FCFS, Policy, install, named_policy, pack_name
from scheduler.policy_check import pointers
from scheduler.recovery import abandon
from scheduler.state import FAULTED, NAME_WORDS, make_state, state_view

DEFAULT_SEATS = 16
DEFAULT_KV_TOKENS = 16_384
DEFAULT_PREFILL_TOKENS = 256
STOP_S = 10.0


@njit
def read_word(words, index):
    """A word that the scheduler or an engine thread releases."""
    return load_acquire(words, index)


class CpuBackend:
    """Engine, scheduler state and launcher on the CPU.

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
    """

    name = "cpu"

    def __init__(
        self, model: Model, config: EngineConfig, policy: Policy, progress: Callable[[str], None]
    ) -> None:
        kv_tokens = config.kv_tokens or DEFAULT_KV_TOKENS
        limits = EngineLimits(
            seats=config.max_seats or DEFAULT_SEATS,
            max_model_len=config.max_model_len,
            kv_tokens=kv_tokens,
            prefill_tokens=config.prefill_tokens or DEFAULT_PREFILL_TOKENS,
            block_size=config.block_size,
        )
        with compiling_ahead() as scheduler_compiled:
            progress(f"preparing {model.name} for the CPU")
            self._engine = CpuEngine(model, limits, threads=config.threads)
            self.spec: EngineSpec = self._engine.spec
            progress("compiling the forward pass (kept for the next start)")
            self._engine.compile()
            progress(f"compiling the scheduler (policy {policy.name})")
            scheduler_compiled()
            for name in config.preload:
                pointers(named_policy(name))
        self._loop: CpuLoop = cpu_loop(policy)
        self._loop.compile()
        self._config = config
        self._io = np.zeros(step_words(self.spec), np.int64)
        format_step(self._io, self.spec)
        self._table = make_table(self.spec)
        self._launcher = make_launcher(EXECS * len(shapes(self.spec)))
        self._state: np.ndarray | None = None
        self._words: np.ndarray | None = None
        self._ring: RingView | None = None
        self._thread: threading.Thread | None = None
        self._verdict: int | None = None
        self._raised: str | None = None  # what ended the scheduler, if it was its policy

    def new_state(self, geometry, placement: int) -> np.ndarray:
        """A fresh scheduler state for this engine; it is the one that `start` runs on."""
        self._state = make_state(
            self.spec, geometry, placement=placement, step_deadline_s=self._config.step_deadline_s
        )
        set_up(self._state, self._loop.policy)
        return self._state

    def start(self, words: np.ndarray, ring: RingView) -> None:
        """Start engine and scheduler on a ring."""
        self._words, self._ring = words, ring
        self._engine.start(self._io, self._table, self._launcher)
        self._start_scheduler()

    def _start_scheduler(self) -> None:
        self._verdict = None
        self._thread = threading.Thread(target=self._run, name="blink-numba-scheduler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        assert self._words is not None
        assert self._state is not None
        try:
            self._verdict = self._loop(self._words, self._state, self._io, self._table, self._launcher)
        except Exception as error:  # a function that a policy calls was compiled to raise
            self._raised = f"policy {self._loop.policy.name!r} raised {type(error).__name__}: {error}"
            self._verdict = FAULTED

    def verdict(self) -> int | None:
        """The scheduler's last verdict once it has returned, None while it runs."""
        return self._verdict

    def prepare(self, policy: Policy) -> None:
        """Compile a policy's functions, while the scheduler runs; for `resume`."""
        cpu_loop(policy).compile()

    def resume(self, policy: Policy) -> None:
        """Run the scheduler again after it parked, with this policy's functions."""
        assert self._state is not None
        install(state_view(self._state), policy)
        self._loop = cpu_loop(policy)
        self._start_scheduler()

    def explain(self) -> str | None:
        """What a policy raised, if that ended the scheduler."""
        return self._raised

    def restart(self, deadline_s: float) -> bool:
        """Go on after a fault, in place; first come, first served if it was the policy's.

        False if the engine still works on the step that was given up.
        """
        assert self._state is not None
        if not self.join(deadline_s) or not self._wait_step_over(deadline_s):
            return False
        abandon(state_view(self._state), step_view(self._io))
        open_window(launcher_view(self._launcher))  # the scheduler counts its launches from zero again
        if self._raised is not None:
            assert self._ring is not None
            self._raised = None
            status = self._ring.status
            status[at.S_POLICY_NAME : at.S_POLICY_NAME + NAME_WORDS] = pack_name(FCFS.name)
            self.resume(FCFS)
        else:
            self._start_scheduler()
        return True

    def _wait_step_over(self, deadline_s: float) -> bool:
        control = step_view(self._io).control
        give_up = time.monotonic() + deadline_s
        while read_word(control, DONE) != read_word(control, TICKET):
            if time.monotonic() >= give_up:
                return False
            time.sleep(0.001)
        return True

    def join(self, deadline_s: float) -> bool:
        """Wait for the scheduler to return. Whether it did."""
        if self._thread is not None:
            self._thread.join(deadline_s)
            return not self._thread.is_alive()
        return True

    def close(self) -> None:
        """Stop the engine's threads; the scheduler has returned."""
        stop_engine(launcher_view(self._launcher))
        self._engine.stop(STOP_S)
