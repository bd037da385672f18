"""The engine's process: ``python -m blink_numba.runtime [--attach] [--hold-fd N] [--report-fd N] CONFIG``."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict

from blink_numba.errors import EngineStartError
from blink_numba.runtime.config import EngineConfig
from blink_numba.runtime.local import Backend, LocalEngine, make_backend

DRAIN_S = 20.0
LOOK_S = 0.2
FAULT_STATUS = 70  # the scheduler faulted and cannot go on here: a new process must take over


class _Reporter:
    """Lines of JSON to the parent; to nobody once it has gone."""

    def __init__(self, descriptor: int | None) -> None:
        self._pipe = None if descriptor is None else os.fdopen(descriptor, "w", encoding="utf-8")

    def __call__(self, **message: object) -> None:
        if self._pipe is None:
            return
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._pipe.write(json.dumps(message) + "\n")
            self._pipe.flush()


def _leave_without_parent(parent: int, started: threading.Event) -> None:
    """End the process if its parent dies while it starts: nobody waits for what it compiles."""
    while not started.wait(LOOK_S):
        if os.getppid() != parent:
            os._exit(0)


def _hold(descriptor: int) -> None:
    """Wait until the parent lets the prepared engine start; leave if it goes instead."""
    with os.fdopen(descriptor, "rb") as pipe:
        if not pipe.read(1):
            os._exit(0)


def main(make: Callable[[EngineConfig, Callable[[str], None]], Backend] = make_backend) -> int:
    """Run an engine until it is told to stop, its parent dies, or it cannot go on.

    Parameters
    ----------
    make : callable
        Makes the backend of a configuration.
    """
    parser = argparse.ArgumentParser(prog="python -m blink_numba.runtime")
    parser.add_argument("config", help="EngineConfig as JSON")
    parser.add_argument("--attach", action="store_true", help="go on with the ring of an engine that died")
    parser.add_argument("--report-fd", type=int, help="file descriptor for progress, readiness and failure")
    parser.add_argument("--hold-fd", type=int, help="prepare, then wait for a byte from this descriptor")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="end when this process has gone")
    options = parser.parse_args()
    logging.basicConfig(
        level=os.environ.get("BLINK_NUMBA_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    report = _Reporter(options.report_fd)
    asked = threading.Event()
    drain = [True]

    def on_signal(number: int, frame: object) -> None:
        drain[0] = number == signal.SIGTERM
        asked.set()

    parent: int = options.parent
    started = threading.Event()
    threading.Thread(target=_leave_without_parent, args=(parent, started), daemon=True).start()
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    try:
        config = EngineConfig.from_json(options.config)
        backend = make(config, lambda line: report(progress=line))
        if options.hold_fd is not None:
            report(prepared=True)
            _hold(options.hold_fd)
        engine = LocalEngine(
            config, lambda line: report(progress=line), attach=options.attach, backend=backend
        )
    except EngineStartError as error:
        report(failure=str(error))
        return 1
    finally:
        started.set()
    report(
        ready={
            "backend": engine.backend,
            "ring": engine.ring_name,
            "seats": engine.spec.seats,
            "max_model_len": engine.spec.max_model_len,
            "blocks": engine.spec.blocks,
            "block_size": engine.spec.block_size,
            "spec": asdict(engine.spec),
        }
    )
    told: str | None = None
    while not asked.wait(LOOK_S):
        running = engine.running()  # before the failure, which is final once it does not
        if engine.failure() != told:
            told = engine.failure()
            report(failure=told)
        if not running:
            logging.getLogger("blink_numba.engine").error("the engine ends: %s", engine.failure())
            os._exit(FAULT_STATUS)  # the ring stays, and with it what is queued; threads may hang
        if os.getppid() != parent:
            drain[0] = False
            break
    engine.stop(DRAIN_S, drain=drain[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
