"""An engine in this process: model, ring, scheduler, and the watchdog that only looks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from blink_numba.errors import EngineStartError
from blink_numba.models import ModelError, load_model
from blink_numba.policies import load_policy
from blink_numba.runtime.config import LAUNCHES, EngineConfig
from blink_numba.runtime.probe import cuda_usable
from graphs.step_io import EngineSpec
from rdma.fencing import declare_dead, front_end_is_dead
from ring import layout as at
from ring.memory import RingError, RingMemory
from ring.recorder import entries
from ring.views import RingView
from scheduler import state as sc
from scheduler.policies import SHIPPED
from scheduler.policy import Policy, named_policy
from scheduler.policy_desk import PolicyDesk
from scheduler.recovery import adopt

logger = logging.getLogger("blink_numba.engine")

LOOK_S = 0.1  # how often the watchdog looks
FIRST_TURNS_S = 10.0  # after that the watchdog says what is wrong
SILENCE_MARGIN_S = 1.0  # beyond a step's deadline, until a heartbeat that stands still is a fault
MAX_RESTARTS = 5  # in place, within
RESTART_WINDOW_S = 60.0
_ERRORS = {
    sc.ERROR_STEP_DEADLINE: "step {argument} passed its deadline",
    sc.ERROR_LAUNCH: "launching a graph failed with code {argument}",
    sc.ERROR_ENGINE: "the engine reported error {argument}",
}


class Backend(Protocol):
    """What runs a scheduler and its engine on one target."""

    name: str
    spec: EngineSpec

    def new_state(self, geometry, placement: int) -> np.ndarray: ...
    def start(self, words: np.ndarray, ring: RingView) -> None: ...
    def verdict(self) -> int | None: ...
    def explain(self) -> str | None: ...
    def restart(self, deadline_s: float) -> bool: ...
    def join(self, deadline_s: float) -> bool: ...
    def close(self) -> None: ...


def make_backend(config: EngineConfig, progress: Callable[[str], None]) -> Backend:
    """Load the model and prepare the backend that a configuration asks for.

    Raises
    ------
    EngineStartError
        With the remedy.
    """
    kind = config.backend
    if kind == "auto":
        kind = "cuda" if cuda_usable() is None else "cpu"
    elif kind == "cuda" and (reason := cuda_usable()) is not None:
        raise EngineStartError(f"the cuda backend cannot run here: {reason}")
    if kind == "cpu" and config.gpu_memory_utilization is not None:
        _refuse_gpu_memory(config, progress)
    try:
        policy = _try_policies(config, progress)
        progress(f"loading {config.model}")
        model = load_model(config.model, dummy=config.dummy)
        if kind == "cuda" and config.launch not in LAUNCHES:
            raise ValueError(
                f"there is no launch strategy {config.launch!r}; choose one of {', '.join(LAUNCHES)}"
            )
        if kind == "cuda" and config.launch.startswith("host"):
            from blink_numba.runtime.cuda_host import CudaHostBackend

            return CudaHostBackend(model, config, policy, progress)
        if kind == "cuda":
            from blink_numba.runtime.cuda import CudaBackend

            return CudaBackend(model, config, policy, progress)
        from blink_numba.runtime.cpu import CpuBackend

        return CpuBackend(model, config, policy, progress)
    except MemoryError as error:
        reason = f"there is not enough memory for this engine ({error})"
        raise EngineStartError(f"{reason}: lower --kv-tokens, --max-num-seqs or --max-model-len") from error
    except (ModelError, ValueError) as error:
        raise EngineStartError(str(error)) from error


def _refuse_gpu_memory(config: EngineConfig, progress: Callable[[str], None]) -> None:
    """Say that a part of the GPU's memory was named for an engine on the CPU."""
    useless = (
        f"gpu_memory_utilization={config.gpu_memory_utilization:g} is of no use to the cpu backend: "
        "kv_tokens sizes its cache"
    )
    if config.backend == "cpu":
        raise EngineStartError(useless)
    progress(f"warning: {useless}")
    logger.warning("%s", useless)


def _try_policies(config: EngineConfig, progress: Callable[[str], None]) -> Policy:
    """The policy to start with; before weights are read, it and those preloaded have been tried out."""
    own = [name for name in (config.policy, *config.preload) if name not in SHIPPED]
    if own:
        progress(f"trying out {', '.join(own)} in simulation (compiled once, kept for the next start)")
    for name in config.preload:
        load_policy(name)
    return load_policy(config.policy)


def _policies_by_name(config: EngineConfig) -> Callable[[str], Policy]:
    """From a name to a policy; those that the engine is started with go by their own names too.

    What comes later from a file or module is tried out first, as those of the start were.
    """
    at_start = {policy.name: policy for policy in map(named_policy, (config.policy, *config.preload))}
    return lambda name: at_start.get(name) or load_policy(name)


class LocalEngine:
    """An engine with its ring, running in this process. A context manager.

    Once it is made its scheduler turns, and the ring's STATUS is this scheduler's own.

    Parameters
    ----------
    config : EngineConfig
    progress : callable, optional
        Takes a line of text at each stage of the start.
    attach : bool
        Go on with a ring whose engine died, keeping what is queued there, instead of making one.
    backend : Backend, optional
        What runs scheduler and engine, instead of one made for `config`; closed at the stop.

    Attributes
    ----------
    ring : RingMemory
    spec : EngineSpec
    backend : str
        ``"cpu"`` or ``"cuda"``.
    ring_name : str
    """

    def __init__(
        self,
        config: EngineConfig,
        progress: Callable[[str], None] = lambda line: None,
        *,
        attach: bool = False,
        backend: Backend | None = None,
    ) -> None:
        self.config = config
        self.ring_name = config.ring_name
        self._failure: str | None = None
        self._restarts: list[float] = []
        self._closing = threading.Event()
        self._beats = (0, 0)
        self._backend = backend or make_backend(config, progress)
        self.backend = self._backend.name
        self.spec = self._backend.spec
        try:
            self.ring = self._attach(progress) if attach else self._create()
        except (RingError, ValueError) as error:
            self._backend.close()
            raise EngineStartError(str(error)) from error
        self._desk = PolicyDesk(
            self.ring.view, self._backend, named_policy(config.policy), _policies_by_name(config)
        )
        before = int(self.ring.view.status[at.S_HEARTBEAT])
        self._backend.start(self.ring.words, self.ring.view)
        self._watchdog = threading.Thread(target=self._watch, name="blink-numba-watchdog", daemon=True)
        self._watchdog.start()
        self._wait_for_status(before)

    def _wait_for_status(self, heartbeat: int) -> None:
        """Until the heartbeat has moved twice: a turn beats at its begin and writes STATUS at its end."""
        give_up = time.monotonic() + FIRST_TURNS_S
        moves = 0
        while moves < 2 and self._backend.verdict() is None and time.monotonic() < give_up:
            now = int(self.ring.view.status[at.S_HEARTBEAT])
            if now == heartbeat:
                time.sleep(0.0005)
            else:
                heartbeat, moves = now, moves + 1

    def _create(self) -> RingMemory:
        geometry = self.config.geometry(self.spec.max_model_len)
        ring = RingMemory.create(
            self.config.ring_name,
            geometry,
            max_model_len=self.spec.max_model_len,
            vocab_size=self.spec.vocab_size,
        )
        self._backend.new_state(geometry, at.HOST_PLACEMENT)
        return ring

    def _attach(self, progress: Callable[[str], None]) -> RingMemory:
        ring = RingMemory.attach(self.config.ring_name)
        if ring.owner_alive():
            raise RingError(f"ring {ring.path} still has a living engine")
        info = ring.view.info
        if (info[at.I_MAX_MODEL_LEN], info[at.I_VOCAB_SIZE]) != (
            self.spec.max_model_len,
            self.spec.vocab_size,
        ):
            raise RingError(f"ring {ring.path} was made for another model or context length")
        ring.adopt()
        words = self._backend.new_state(ring.geometry, at.HOST_PLACEMENT)
        kept, ended = adopt(ring.view, sc.state_view(words), time.monotonic_ns())
        ring.view.command[at.C_STOP] = at.RUN
        progress(f"took over the ring: {kept} queued requests kept, {ended} in service ended with an error")
        return ring

    # --- the watchdog ---

    def _watch(self) -> None:
        while not self._closing.wait(LOOK_S):
            self._bury_dead_front_ends()
            self._desk.look()
            verdict = self._backend.verdict()
            silent = self._silent()
            if verdict is None and not silent:
                continue
            if verdict == sc.STOPPED:
                return
            self._report_fault(silent)
            if not self._restart():
                return

    def _silent(self) -> bool:
        """Whether the heartbeat stood still for longer than any step may take.

        Counted in looks, not in time: a process that was stopped for a while has not looked.
        """
        before, looks = self._beats
        heartbeat = int(self.ring.view.status[at.S_HEARTBEAT])
        self._beats = (heartbeat, looks + 1 if heartbeat == before else 0)
        if self._beats[1] * LOOK_S <= self.config.step_deadline_s + SILENCE_MARGIN_S:
            return False
        self._beats = (heartbeat, 0)
        return True

    def _bury_dead_front_ends(self) -> None:
        for front_end in range(self.ring.geometry.front_ends):
            if front_end_is_dead(self.ring.view, front_end):
                logger.warning("front end %d died: its requests are ended", front_end)
                declare_dead(self.ring.view, front_end)

    def _report_fault(self, silent: bool) -> None:
        status = self.ring.view.status
        error, argument = int(status[at.S_ERROR]), int(status[at.S_ERROR_ARG])
        reason = _ERRORS.get(error, "the scheduler stopped: error {error}").format(
            argument=argument, error=error
        )
        cause = self._backend.explain()
        if cause is not None:
            reason = f"CUDA gave up: {cause}" if self.backend == "cuda" else cause
        elif silent and error == sc.NO_ERROR:
            reason = f"the scheduler's heartbeat stood still for {self.config.step_deadline_s:g} s"
        logger.error("scheduler fault: %s", reason)
        for entry in entries(self.ring.view.flight)[-8:]:
            logger.error("  %d %s %s", entry.number, entry.event.name, entry.arguments)
        self._failure = reason

    def _restart(self) -> bool:
        now = time.monotonic()
        self._restarts = [when for when in self._restarts if now - when < RESTART_WINDOW_S]
        if len(self._restarts) >= MAX_RESTARTS:
            self._failure = f"{self._failure}; given up after {MAX_RESTARTS} restarts within a minute"
            logger.error("%s", self._failure)
            return False
        self._restarts.append(now)
        if not self._backend.restart(deadline_s=5.0):
            self._failure = f"{self._failure}; the engine does not come back: a new process must take over"
            logger.error("%s", self._failure)
            return False
        logger.warning(
            "scheduler restarted in place; queued requests kept, those in service ended with an error"
        )
        return True

    # --- for its owner ---

    def failure(self) -> str | None:
        """The last fault in one line, None if there was none."""
        return self._failure

    def running(self) -> bool:
        """Whether the scheduler turns (it may be between a fault and its restart)."""
        return self._watchdog.is_alive()

    def stop(self, deadline_s: float = 10.0, *, drain: bool = True) -> bool:
        """Stop: let live requests finish (or end them), then leave nothing behind.

        Returns
        -------
        bool
            Whether all live requests ended in time; if not they end with SHUTDOWN.
        """
        if self._closing.is_set():
            return True
        command = self.ring.view.command
        drained = False
        if drain:
            command[at.C_STOP] = at.DRAIN
            drained = self._backend.join(deadline_s)
        if not drained:
            command[at.C_STOP] = at.STOP
            if not self._backend.join(deadline_s):
                logger.error("the scheduler did not stop within %.0f s", deadline_s)
        self._closing.set()
        self._watchdog.join(5.0)
        self._desk.close()
        self._backend.close()
        self.ring.close()
        return drained or not drain

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop(drain=False)
