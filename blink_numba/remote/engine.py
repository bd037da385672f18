"""An engine alone, for front ends elsewhere.

The supervisor maps the ring and holds the RDMA sessions; the engine is its child. So an
engine that dies is replaced under the front ends' connections: the memory they read and
write stays, and what is queued in it.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from blink_numba.errors import EngineStartError
from blink_numba.remote.keys import shared_key
from ring import layout as at
from ring.memory import RingMemory
from ring.states import DECODE_COMPLETED, slot_state

if TYPE_CHECKING:
    from blink_numba.runtime import EngineConfig, EngineProcess

log = logging.getLogger("blink_numba")

TRANSPORTS = ("verbs", "shm")
DEFAULT_PORT = 7471
RESTARTS, RESTART_WINDOW_S = 3, 60.0
_WATCH_S = 0.1
_READ_S = 2.0


def run_engine(
    config: EngineConfig,
    *,
    transport: str = "verbs",
    host: str = "0.0.0.0",
    port: int = DEFAULT_PORT,
    key: str | None = None,
    key_file: str | None = None,
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
    key, key_file : str, optional
        Shared with them (`blink_numba.remote.keys.shared_key`).
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
    with ExitStack() as held:
        listener = None
        if transport == "verbs":  # what would fail later fails before a model is loaded
            from rdma.verbs import bind_listener, open_device

            secret = shared_key(key, key_file)
            open_device(device).close()
            listener = held.enter_context(bind_listener(host, port))
        supervisor = _Supervisor(config, on_progress)
        held.callback(supervisor.stop)
        ending = _Ending(stop)
        with ending.interrupted_by_signals():
            supervisor.start()
        if ending.event.is_set():
            return 0
        if listener is None:
            on_ready(f"{config.model} serves front ends of this host through ring {config.ring_name}")
            return supervisor.watch(ending)
        from rdma.verbs import RingHost

        memory = held.enter_context(RingMemory.attach(config.ring_name))
        about = {"model": config.model}
        held.enter_context(RingHost(memory, secret, listener=listener, device=device, about=about))
        on_ready(f"{config.model} serves front ends at {host}:{listener.getsockname()[1]}")
        status = supervisor.watch(ending)
        supervisor.stop()  # it finishes what is in service, and front ends read it
        _wait_until_read(memory)
        return status


def _wait_until_read(memory: RingMemory) -> None:
    """Give front ends a moment to read the last answers and release their slots."""
    view, give_up = memory.view, time.monotonic() + _READ_S
    while time.monotonic() < give_up:
        words = zip(view.ctl[:: at.CTL_WORDS].tolist(), view.req.tolist(), strict=True)
        if all(slot_state(ctl, req) != DECODE_COMPLETED for ctl, req in words):
            return
        time.sleep(_WATCH_S / 10)


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

    def watch(self, ending: _Ending) -> int:
        """Replace the engine when it ends by itself; the exit status."""
        assert self._engine is not None
        while not ending.event.wait(_WATCH_S):
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
                with ending.interrupted_by_signals():
                    self._engine = self._engine.replace()
                    self._engine.wait_ready(on_progress=self._progress)
            except EngineStartError as error:
                log.error("no engine could take over: %s", error)
                return 1
        return 0

    def stop(self) -> None:
        """End the engine; what is in service is finished first."""
        if self._engine is not None:
            self._engine.stop(drain=True)
            self._engine = None


class _Ending:
    """What ends the engine: SIGTERM and SIGINT, or an event of the caller's.

    Attributes
    ----------
    event : threading.Event
        Set when it is time.
    """

    def __init__(self, event: threading.Event | None) -> None:
        self.event = event or threading.Event()
        self._interrupts = False
        if event is None:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self.event.set()
        if self._interrupts:
            raise KeyboardInterrupt

    @contextmanager
    def interrupted_by_signals(self) -> Iterator[None]:
        """A signal ends the block, besides setting the event: starting an engine takes its time."""
        self._interrupts = True
        try:
            yield
        except KeyboardInterrupt:
            if not self.event.is_set():
                raise
        finally:
            self._interrupts = False
