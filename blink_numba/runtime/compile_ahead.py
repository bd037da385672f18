"""Compiling the scheduler in a process of its own, while this one compiles the forward pass.

The compiler holds a lock, so a second thread gains nothing; a second process writes to the same
cache folder, and on two cores the first start takes as long as the longer of the two parts.
``python -m blink_numba.runtime.compile_ahead`` is that process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numba

from ring.jit import CACHING

LIMIT_S = 600.0
_config: Any = numba.config  # its attributes are made at run time


@contextmanager
def compiling_ahead() -> Iterator[Callable[[], None]]:
    """Compile the scheduler beside what is done in here, if the cache does not hold it yet.

    Yields
    ------
    callable
        Waits until it is compiled. Failing is no error: what the cache lacks is compiled later.
    """
    process = _begin()

    def finish() -> None:
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LIMIT_S)

    try:
        yield finish
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()


def _begin() -> subprocess.Popen | None:
    if not CACHING or any(Path(_config.CACHE_DIR).rglob("cpu.run-*.nbi")):
        return None
    command = [sys.executable, "-m", "blink_numba.runtime.compile_ahead"]
    root = Path(__file__).resolve().parents[2]  # where the sibling packages are, installed or not
    quiet = subprocess.DEVNULL
    try:
        return subprocess.Popen(command, cwd=root, stdin=quiet, stdout=quiet, stderr=quiet)
    except OSError:
        return None  # then it is compiled by whoever needs it


def main() -> None:
    """Compile the scheduler for any policy into the cache."""
    from scheduler.build import cpu_loop
    from scheduler.policy import FCFS

    cpu_loop(FCFS).compile()


if __name__ == "__main__":
    main()
