"""An engine alone, for front ends elsewhere.

The supervisor maps the ring and holds the RDMA sessions; the engine is its child. So an
engine that dies is replaced under the front ends' connections: the memory they read and
write stays, and what is queued in it.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from blink_numba.errors import EngineStartError
from ring.memory import RingMemory

if TYPE_CHECKING:
    from blink_numba.runtime import EngineConfig, EngineProcess

log = logging.getLogger("blink_numba")

TRANSPORTS = ("verbs", "shm")
DEFAULT_PORT = 7471
RESTARTS, RESTART_WINDOW_S = 3, 60.0
_WATCH_S = 0.1


def run_engine(
    config: EngineConfig,
    *,
    transport: str = "verbs",
    host: str = "0.0.0.0",
    port: int = DEFAULT_PORT,
    key: str | None = None,
    device: str | None = None,
    on_progress: Callable[[str], None] = log.info,
    on_ready: Callable[[str], None] = log.info,
    stop: threading.Event | None = None,
) -> int:
    """Run an engine until SIGTERM or SIGINT, or until it dies too often.

    Parameters
    ----------
    config : EngineConfig
        `front_ends` is how many may attach.
    transport : {"verbs", "shm"}
        How front ends reach the ring.
    host, port : str, int
        Where front ends connect (verbs).
    key : str, optional
        Shared with them; ``BLINK_NUMBA_RDMA_KEY`` by default.
    device : str, optional
        RDMA device; the first by default.
    on_progress, on_ready : callable
        Take a line of text.
    stop : threading.Event, optional
        Ends the engine when set; signals are then the caller's affair.

    Returns
    -------
    int
        Exit status.

    Raises
    ------
    EngineStartError, TransportError
        With the remedy.
    """
    if transport not in TRANSPORTS:
        raise ValueError(f"transport={transport!r} must be one of {', '.join(TRANSPORTS)}")
    if transport == "verbs":
        from rdma.verbs import open_device
        from rdma.verbs.wire import KEY_VARIABLE, check_key

        key = key or os.environ.get(KEY_VARIABLE)
        check_key(key)  # what would fail later fails before a model is loaded
        open_device(device).close()
    supervisor = _Supervisor(config, on_progress)
    stop = stop or _stop_on_signals()
    try:
        supervisor.start()
        if transport == "shm":
            on_ready(f"{config.model} serves front ends of this host through ring {config.ring_name}")
            return supervisor.watch(stop)
        with _hosted(config, key, host, port, device) as number:
            on_ready(f"{config.model} serves front ends at {host}:{number}")
            return supervisor.watch(stop)
    finally:
        supervisor.stop()


@contextmanager
def _hosted(config: EngineConfig, key: str | None, host: str, port: int, device: str | None) -> Iterator[int]:
    from rdma.verbs import RingHost

    with RingMemory.attach(config.ring_name) as memory:
        about = {"model": config.model}
        with RingHost(memory, key, host=host, port=port, device=device, about=about) as ring_host:
            yield ring_host.port


class _Supervisor:
    """Keeps an engine's process alive on one ring."""

    def __init__(self, config: EngineConfig, on_progress: Callable[[str], None]) -> None:
        self._config, self._progress = config, on_progress
        self._engine: EngineProcess | None = None
        self._restarts: deque[float] = deque(maxlen=RESTARTS)

    def start(self) -> None:
        from blink_numba.runtime import EngineProcess

        self._engine = EngineProcess.spawn(self._config)
        self._engine.wait_ready(on_progress=self._progress)

    def watch(self, stop: threading.Event) -> int:
        """Replace the engine when it ends by itself; the exit status."""
        assert self._engine is not None
        while not stop.wait(_WATCH_S):
            if self._engine.alive():
                continue
            reason = self._engine.failure() or "it ended"
            now = time.monotonic()
            if len(self._restarts) == RESTARTS and now - self._restarts[0] < RESTART_WINDOW_S:
                log.error(
                    "the engine died %d times within %g s, at last: %s", RESTARTS, RESTART_WINDOW_S, reason
                )
                return 1
            self._restarts.append(now)
            log.warning("the engine died (%s): another takes over its ring", reason)
            try:
                self._engine = self._engine.replace()
                self._engine.wait_ready(on_progress=self._progress)
            except EngineStartError as error:
                log.error("no engine could take over: %s", error)
                return 1
        return 0

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.stop(drain=True)


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
