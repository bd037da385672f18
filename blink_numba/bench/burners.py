"""Processes that keep the CPUs busy: what else runs on a server's cores."""

from __future__ import annotations

import os
import subprocess
import sys
import time

# sorts and memory traffic, as in data preparation; says so once it is under way
_BURN = """
import os, sys
from blink_numba.processes import die_with_parent
die_with_parent()
os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
import numpy as np
print("burning", flush=True)
while True:
    np.random.rand(1500, 1500).sort(axis=0)
    bytearray(50_000_000)
"""
START_S = 60.0


def reserved_core(reserve: bool = True) -> tuple[set[int], set[int]]:
    """This process's cores as (the one that stands for the network card, the others).

    Both are all cores when there are fewer than three, or none shall be reserved.
    """
    cores = os.sched_getaffinity(0)
    if len(cores) < 3 or not reserve:
        return cores, cores
    first = min(cores)
    return {first}, cores - {first}


class Burners:
    """`count` processes on `cores`. A context manager: they burn inside, and are gone after.

    Raises
    ------
    RuntimeError
        When they did not start within a minute.
    """

    def __init__(self, count: int, cores: set[int]) -> None:
        self._count, self._cores = count, cores
        self._processes: list[subprocess.Popen] = []

    def __enter__(self) -> Burners:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        where = ",".join(map(str, sorted(self._cores)))
        try:
            for _ in range(self._count):
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", _BURN, where], stdout=subprocess.PIPE, env=environment
                    )
                )
            self._await_start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _await_start(self) -> None:
        give_up = time.monotonic() + START_S
        for process in self._processes:
            assert process.stdout is not None
            if not process.stdout.readline() or time.monotonic() > give_up:
                raise RuntimeError(f"{self._count} CPU burners did not start within {START_S:g} s")

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._processes.clear()
