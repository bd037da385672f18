"""Engine and front end as two processes under one supervisor.

The supervisor binds the listening socket first, so a busy port is an error before anything
is loaded, and a front end that is started again finds its clients in the backlog. It starts
the engine, then the front end, watches both, and starts anew what ended by itself: requests
in service get an error, new ones are answered again once both are back.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from blink_numba.config import ServeConfig
from blink_numba.errors import EngineStartError
from blink_numba.frontend.settings import FrontEndSettings

log = logging.getLogger("blink_numba")

ENGINE_START_S = 600.0  # a first start compiles; loading a large model takes its time
FRONT_END_START_S = 120.0
WATCH_INTERVAL_S = 0.1
RESTARTS, RESTART_WINDOW_S = 3, 60.0


class ServingError(RuntimeError):
    """The server cannot start or go on; the message is one line and names the remedy."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        number = error.errno or 0 if isinstance(error, OSError) else -1
        if number < 0:  # resolving a name has numbers of its own, below zero
            raise ServingError(
                f"there is no address {host!r} to listen on: choose another with --host"
            ) from None
        if number == errno.EADDRNOTAVAIL:
            raise ServingError(f"{host} is no address of this machine: choose another with --host") from None
        reason = (
            "is in use" if number == errno.EADDRINUSE else f"cannot be listened on ({os.strerror(number)})"
        )
        raise ServingError(f"port {port} of {host} {reason}: choose another with --port") from None


class FrontEndProcess:
    """A front end in a process of its own.

    Parameters
    ----------
    settings : FrontEndSettings
    listening : socket.socket
        Handed over to the process.
    """

    def __init__(self, settings: FrontEndSettings, listening: socket.socket) -> None:
        descriptor = listening.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "blink_numba.frontend"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(descriptor,),
            start_new_session=True,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(replace(settings, listen_fd=descriptor).to_json() + "\n")
        self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, deadline_s: float, alive: Callable[[], bool] = lambda: True) -> None:
        """Until it answers requests.

        Raises
        ------
        ServingError
            It ended, `alive` turned false, or the deadline passed.
        """
        assert self._process.stdout is not None
        give_up = time.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not selector.select(WATCH_INTERVAL_S):
                if not alive():
                    raise ServingError("the engine ended while the front end was starting")
                if time.monotonic() >= give_up:
                    raise ServingError(f"the front end did not start within {deadline_s:g} s")
        if not self._process.stdout.readline().startswith("ready"):
            raise ServingError("the front end ended at its start; its log above says why")

    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self, deadline_s: float) -> None:
        """Let it finish what is in service, then end it."""
        if self.alive():
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Serving:
    """A running server. A context manager.

    Parameters
    ----------
    config : ServeConfig
    on_progress : callable
        Called with a line for each step of the start.

    Attributes
    ----------
    url : str
        Base address, without ``/v1``.
    """

    def __init__(self, config: ServeConfig, on_progress: Callable[[str], None] = log.info) -> None:
        from blink_numba.runtime import EngineProcess

        self._config = config
        self._progress = on_progress
        self._spawn_engine = EngineProcess.spawn
        self._settings = config.front_end()
        self._restarts: deque[float] = deque(maxlen=RESTARTS)
        self._stopping = False
        self._engine: EngineProcess | None = None
        self._front_end: FrontEndProcess | None = None
        self._listening = listen(config.host, config.port)
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.url = f"http://{host}:{self._listening.getsockname()[1]}"

    @property
    def engine_pid(self) -> int:
        assert self._engine is not None
        return self._engine.pid

    @property
    def front_end_pid(self) -> int:
        assert self._front_end is not None
        return self._front_end.pid

    def start(self) -> None:
        """Start both processes; returns when requests are answered.

        Raises
        ------
        ServingError, EngineStartError
        """
        try:
            self._engine = self._spawn_engine(self._config.engine())
            self._engine.wait_ready(ENGINE_START_S, self._progress)
            self._start_front_end()
        except BaseException:
            self.stop()
            raise

    def _start_front_end(self) -> None:
        assert self._engine is not None
        settings = replace(self._settings, kv_blocks=self._engine.info.get("blocks", 0))
        self._front_end = FrontEndProcess(settings, self._listening)
        self._front_end.wait_ready(FRONT_END_START_S)

    def watch(self) -> None:
        """Keep both processes going until `stop` is called from a signal handler.

        Raises
        ------
        ServingError
            One of them keeps ending.
        """
        while not self._stopping:
            assert self._engine is not None
            assert self._front_end is not None
            if not self._engine.alive():
                log.error("the engine ended: %s", self._engine.failure())
                self._again("engine")
                self._engine = self._engine.replace()
                self._engine.wait_ready(ENGINE_START_S, self._progress)
                log.info("the engine is back")
            elif not self._front_end.alive():
                log.error("the front end (process %d) ended", self._front_end.pid)
                self._again("front end")
                self._front_end.stop(1.0)
                self._start_front_end()
                log.info("the front end is back")
            else:
                time.sleep(WATCH_INTERVAL_S)

    def request_stop(self) -> None:
        """Make `watch` return; safe in a signal handler."""
        self._stopping = True

    def _again(self, what: str) -> None:
        now = time.monotonic()
        if len(self._restarts) == RESTARTS and now - self._restarts[0] < RESTART_WINDOW_S:
            raise ServingError(
                f"the {what} ended {RESTARTS + 1} times within {RESTART_WINDOW_S:g} s: giving up"
            )
        self._restarts.append(now)

    def stop(self) -> None:
        """Finish what is in service, then end both processes and close the socket."""
        self._listening.close()
        if self._front_end is not None:
            self._front_end.stop(self._config.drain_timeout + 10.0)
            self._front_end = None
        if self._engine is not None:
            self._engine.stop(10.0)
            self._engine = None

    def __enter__(self) -> Serving:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def serve(config: ServeConfig, on_progress: Callable[[str], None], on_ready: Callable[[str], None]) -> int:
    """Serve until SIGINT, SIGTERM, or the terminal is closed. Exit status for the process."""
    os.environ["BLINK_NUMBA_LOG_LEVEL"] = config.log_level  # the engine's process inherits it
    serving: Serving | None = None
    interrupted = False

    def stop(number: int, frame: object) -> None:
        nonlocal interrupted
        if interrupted or serving is None or not started:
            raise KeyboardInterrupt
        interrupted = True
        serving.request_stop()

    started = False
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup's
            signal.signal(number, stop)
    try:
        serving = Serving(config, on_progress)
        with serving:
            started = True
            on_ready(serving.url)
            serving.watch()
            on_progress("finishing the requests in service")
    except KeyboardInterrupt:
        return 130
    except (ServingError, EngineStartError) as error:
        log.error("%s", error)
        return 1
    return 0
