"""The engine as a process of its own: started, watched, replaced when it dies.

Child and parent speak over a pipe, a JSON object a line: ``{"progress": text}``,
``{"prepared": true}``, ``{"ready": {…}}``, ``{"failure": text}``. The log goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from blink_numba.errors import EngineStartError
from blink_numba.runtime.config import EngineConfig
from graphs.step_io import EngineSpec
from ring.memory import RingError, remove_stale, ring_path

START_DEADLINE_S = 600.0


class EngineProcess:
    """An engine in a child process. Use `spawn`; a context manager.

    Attributes
    ----------
    config : EngineConfig
    ring_name : str
    info : dict
        What the engine said when it became ready: backend, model, shapes.
    """

    def __init__(
        self, config: EngineConfig, child: subprocess.Popen, pipe: int, hold: int | None = None
    ) -> None:
        self.config = config
        self.ring_name = config.ring_name
        self.info: dict[str, Any] = {}
        self._child = child
        self._hold = hold
        self._prepared = threading.Event()
        self._ready = threading.Event()
        self._failure: str | None = None
        self._on_progress: Callable[[str], None] = lambda line: None
        self._reader = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._reader.start()

    @classmethod
    def spawn(
        cls, config: EngineConfig, *, attach: bool = False, hold: bool = False,
        module: str = "blink_numba.runtime",
    ) -> EngineProcess:  # fmt: skip
        """Start the engine's process; returns at once (see `wait_ready`).

        Parameters
        ----------
        attach : bool
            Go on with the ring of an engine that died.
        hold : bool
            Load and compile, and then wait for `release` before the scheduler starts.
        module : str
            What the process runs, with the command line of ``blink_numba.runtime``.
        """
        read_end, write_end = os.pipe()
        passed, release_end = [write_end], None
        command = [sys.executable, "-m", module, "--report-fd", str(write_end)]
        command += ["--parent", str(os.getpid())]
        if attach:
            command.append("--attach")
        if hold:
            hold_end, release_end = os.pipe()
            passed.append(hold_end)
            command += ["--hold-fd", str(hold_end)]
        child = subprocess.Popen(
            [*command, config.to_json()],
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to the parent, which stops the engine in order
        )
        for descriptor in passed:
            os.close(descriptor)
        return cls(config, child, read_end, release_end)

    def _read(self, pipe: int) -> None:
        with os.fdopen(pipe, encoding="utf-8") as lines:
            for line in lines:
                message = json.loads(line)
                if "progress" in message:
                    self._on_progress(message["progress"])
                elif "prepared" in message:
                    self._prepared.set()
                elif "ready" in message:
                    self.info = message["ready"]
                    self._ready.set()
                elif "failure" in message:
                    self._failure = message["failure"]
        self._prepared.set()  # the pipe is closed: it will never be more ready than now
        self._ready.set()

    def wait_ready(
        self, deadline_s: float = START_DEADLINE_S, on_progress: Callable[[str], None] | None = None
    ) -> None:
        """Wait until the engine serves.

        Raises
        ------
        EngineStartError
            It ended, or was not ready in time (it is then ended).
        """
        if on_progress is not None:
            self._on_progress = on_progress
        in_time = self._ready.wait(deadline_s)
        if self.info:
            return
        if in_time:  # the pipe was closed: it is ending
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(1.0)
        reason = self.failure() or f"the engine was not ready within {deadline_s:.0f} s"
        self.kill()
        raise EngineStartError(reason)

    def wait_prepared(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until an engine that was spawned to hold waits for `release`.

        Raises
        ------
        EngineStartError
            It ended, or was not prepared in time (it is then ended).
        """
        if not self._prepared.wait(deadline_s) or self._ready.is_set():
            self.wait_ready(0.0)

    def release(self) -> None:
        """Let an engine that holds start its scheduler; `wait_ready` waits for that."""
        if self._hold is None:
            raise RuntimeError("this engine does not hold: it was spawned without hold, or is released")
        with contextlib.suppress(BrokenPipeError):  # it ended: `wait_ready` says why
            os.write(self._hold, b"1")
        self._drop_hold()

    @property
    def held(self) -> bool:
        """Whether it waits, or will wait, for `release`."""
        return self._hold is not None

    def _drop_hold(self) -> None:
        if self._hold is not None:
            os.close(self._hold)
            self._hold = None

    @property
    def spec(self) -> EngineSpec:
        """Shapes of the engine, once it is ready."""
        shapes: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in self.info["spec"].items()
        }
        return EngineSpec(**shapes)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child.poll() is None

    def failure(self) -> str | None:
        """Why it ended, or its last fault, in one line; None if all was well."""
        code = self._child.poll()
        if code is None or code == 0:
            return self._failure
        if self._failure:
            return self._failure
        if code < 0:
            return f"the engine was ended by signal {signal.Signals(-code).name}"
        return f"the engine ended with status {code}"

    def replace(self) -> EngineProcess:
        """Start a new process on the ring of this one, which has ended; queued requests are kept.

        Where somebody removed the ring's file, on a new ring of its name.
        """
        self.kill()
        return EngineProcess.spawn(self.config, attach=ring_path(self.ring_name).exists())

    def stop(self, deadline_s: float = 30.0, *, drain: bool = True) -> bool:
        """Stop the engine: drain (SIGTERM) or end live requests (SIGINT); kill it at the deadline.

        Returns
        -------
        bool
            Whether it ended by itself.
        """
        self._drop_hold()
        if self.alive():
            self._child.send_signal(signal.SIGTERM if drain else signal.SIGINT)
            try:
                self._child.wait(deadline_s)
            except subprocess.TimeoutExpired:
                self.kill()
                self._remove_ring()
                return False
        self._remove_ring()
        return True

    def kill(self) -> None:
        """End the process now; its ring stays, for `replace`."""
        self._drop_hold()
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()
        self._child.wait()

    def _remove_ring(self) -> None:
        with contextlib.suppress(RingError):  # of another engine, which has the name
            remove_stale(ring_path(self.ring_name))

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop(drain=False)


def wait_for(condition: Callable[[], bool], deadline_s: float, step_s: float = 0.01) -> bool:
    """Poll a condition until it holds or the deadline passes. Whether it held."""
    give_up = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= give_up:
            return False
        time.sleep(step_s)
    return True
