"""`CpuEngine`: a model served by this machine's cores."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref

import numpy as np

from blink_numba.engines.cpu.buffers import make_activations, make_cache, make_scratch
from blink_numba.engines.cpu.step import follow_steps, launch_and_wait, lead_steps
from blink_numba.engines.cpu.team import make_team
from blink_numba.engines.cpu.weights import build_network
from blink_numba.engines.limits import EngineLimits
from blink_numba.models import Model
from graphs.grid import EXECS, check_table, make_table, shapes
from graphs.launcher import launcher_view, make_launcher, stop_engine
from graphs.step_io import FAULT, EngineSpec, check_step, format_step, step_view, step_words

SMALL_MODEL_BYTES = 4 << 20  # a step over so little takes less than its barriers do


class EngineError(RuntimeError):
    """The engine is used out of turn, or its threads do not end."""


class CpuEngine:
    """Forward pass and sampling on the CPU, behind a step buffer.

    Parameters
    ----------
    model : Model
    limits : EngineLimits, optional
    threads : int, optional
        Engine threads; by default one for each core this process may use, but only one for a
        model so small that waiting for each other would cost more than it gains.

    Attributes
    ----------
    spec : EngineSpec
        What `graphs.step_io` and the graph grid are made from.

    Notes
    -----
    Between `start` and `stop` the engine's own threads take launches from a launcher and never
    hold the interpreter's lock.
    """

    def __init__(
        self, model: Model, limits: EngineLimits | None = None, *, threads: int | None = None
    ) -> None:
        self.spec = (limits or EngineLimits()).spec(model.config)
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be positive, got {threads}")
        self._network = build_network(model, self.spec.max_model_len)
        self.threads = threads or _default_threads(self._network.panels.nbytes)
        self._cache = make_cache(self._network, self.spec)
        self._acts = make_activations(self._network, self.spec)
        self._scratch = [make_scratch(self._network, self.spec, member) for member in range(self.threads)]
        self._team = make_team(self.threads)
        self._members: list[threading.Thread] = []
        self._launcher_words: np.ndarray | None = None
        self._own: _OwnLauncher | None = None
        _stop_at_exit(self)

    def compile(self) -> None:
        """Compile the step, or load it from the cache, in the calling thread (10 to 30 s the first time)."""
        io_words = np.zeros(step_words(self.spec), np.int64)
        format_step(io_words, self.spec)
        launcher_words = make_launcher(1)
        stop_engine(launcher_view(launcher_words))
        memory = self._network, self._cache, self._acts, self._scratch[0], make_team(1)
        lead_steps(io_words, make_table(self.spec), launcher_words, *memory)
        follow_steps(io_words, *memory, 0)  # returns at once: the leader has dismissed the team

    def start(self, io_words: np.ndarray, table_words: np.ndarray, launcher_words: np.ndarray) -> None:
        """Serve launches until the launcher is stopped.

        Parameters
        ----------
        io_words, table_words, launcher_words : int64 arrays
            Step buffer, graph table and launcher; they must outlive the engine's threads.

        Raises
        ------
        EngineError
            The engine is running.
        ring.sections.BufferError
            A buffer is not what it should be.
        """
        self._require_idle()
        check_step(io_words)
        check_table(table_words)
        self.compile()
        self._launcher_words = launcher_words
        self._team = make_team(self.threads)  # a new one: the last may have been dismissed, or broken
        for member in range(1, self.threads):
            self._start_thread(f"engine-{member}", follow_steps, (io_words, *self._memory(member), 0))
        lead = (io_words, table_words, launcher_words, *self._memory(0))
        self._start_thread("engine-0", lead_steps, lead)

    def stop(self, deadline_s: float = 60.0) -> None:
        """End the engine's threads after the step they are in. Idempotent.

        Raises
        ------
        EngineError
            A thread has not ended after `deadline_s` seconds.
        """
        if self._launcher_words is not None:
            stop_engine(launcher_view(self._launcher_words))
        deadline = time.monotonic() + deadline_s
        for member in self._members:
            member.join(max(0.0, deadline - time.monotonic()))
        stuck = [member.name for member in self._members if member.is_alive()]
        if stuck:
            raise EngineError(f"engine threads {', '.join(stuck)} have not ended within {deadline_s:g} s")
        self._members.clear()
        self._launcher_words = None
        self._own = None

    @property
    def running(self) -> bool:
        """Whether the engine's threads serve launches."""
        return any(member.is_alive() for member in self._members)

    def run_step(self, io_words: np.ndarray, kind: int, shape: int, *, deadline_s: float = 60.0) -> int:
        """Launch one step and wait for it; for tests and measurements, where no scheduler runs.

        Parameters
        ----------
        io_words : int64 array
            Step buffer with the step's inputs and a new TICKET.
        kind, shape : int
            Of a graph in the grid: ``DECODE`` and a batch, or ``PREFILL`` and a number of tokens.

        Returns
        -------
        int
            The step's fault code, 0 for none.

        Raises
        ------
        EngineError
            The engine serves another launcher, or the step is not done in time.
        """
        if self._own is None or self._own.io_words is not io_words:
            self._require_idle()
            self._own = _OwnLauncher(self.spec, io_words)
            self.start(io_words, self._own.table_words, self._own.launcher_words)
        if (kind, shape) not in self._own.graphs:
            raise EngineError(f"there is no graph of kind {kind} and shape {shape}: {self._own.graphs}")
        executable = self._own.graphs.index((kind, shape)) * EXECS
        buffers = io_words, self._own.table_words, self._own.launcher_words
        if not launch_and_wait(*buffers, executable, int(deadline_s * 1e9)):
            raise EngineError(f"a step of kind {kind} and shape {shape} was not done within {deadline_s:g} s")
        return int(step_view(io_words).control[FAULT])

    def sampled_logits(self, count: int) -> np.ndarray:
        """Logits of the first `count` sampled rows of the last step, in the order of its rows.

        Returns
        -------
        float32[count, vocab_size]
            A view, valid until the next step.
        """
        rows = self._acts.logits.reshape(-1, self._acts.logit_stride)
        return rows[:count, : self.spec.vocab_size]

    def _memory(self, member: int) -> tuple:
        return self._network, self._cache, self._acts, self._scratch[member], self._team

    def _require_idle(self) -> None:
        if self.running:
            raise EngineError("the engine is running: stop it first")

    def _start_thread(self, name: str, target, arguments: tuple) -> None:
        member = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        member.start()
        self._members.append(member)


def _default_threads(weight_bytes: int) -> int:
    return len(os.sched_getaffinity(0)) if weight_bytes > SMALL_MODEL_BYTES else 1


class _OwnLauncher:
    """Table and launcher of an engine that is driven step by step."""

    def __init__(self, spec: EngineSpec, io_words: np.ndarray) -> None:
        self.io_words = io_words
        self.graphs = shapes(spec)
        self.table_words = make_table(spec)
        self.launcher_words = make_launcher(len(self.graphs) * EXECS)


def _stop_at_exit(engine: CpuEngine) -> None:
    """End an engine's threads before the interpreter frees what they work on."""
    reference = weakref.ref(engine)

    def stop() -> None:
        alive = reference()
        if alive is not None and alive.running:
            alive.stop()

    atexit.register(stop)
    weakref.finalize(engine, atexit.unregister, stop)
