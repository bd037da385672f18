"""The death handshake, host side.

A front end that stopped beating may only be slow; declared dead while it still writes, it
would corrupt its successor's requests. So: somebody *confirms* that it is gone (its process
has ended, its queue pair is destroyed), then raises the fence; the scheduler ends what was
live, looks at every `req` of the share directly (the dead may have stopped between `req` and
doorbell) and releases `drained` = fence; only then does a successor write its first word.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ring import layout as at
from ring.atomics import load_acquire, store_release
from ring.jit import njit
from ring.memory import process_start_ticks
from ring.views import RingView


@njit
def _raise_fence(fe_fence, line):
    generation = load_acquire(fe_fence, line) + 1  # only the host writes it
    store_release(fe_fence, line, generation)  # pairs with the scheduler's acquire of the fence
    return generation


@njit
def _drained(fe_sched, line):
    return load_acquire(fe_sched, line)  # pairs with the scheduler's release of `drained`


def front_end_is_dead(view: RingView, front_end: int) -> bool:
    """Whether a front end of this host ended without leaving its place.

    A front end on another host writes no pid; who runs its connection declares its death.
    """
    line = view.fe_port[front_end * at.FE_WORDS : (front_end + 1) * at.FE_WORDS]
    if int(line[at.P_GENERATION]) != int(view.fe_fence[front_end * at.FE_WORDS + at.F_FENCE]):
        return False
    return holder_ended(lambda: line)  # last: of a successor that came meanwhile it sees that it lives


def holder_ended(look: Callable[[], np.ndarray]) -> bool:
    """Whether the process of this host that signed a port line has ended.

    While a front end comes or goes, words of before and after may stand side by side in its line. So a
    pid without a start time is nobody's, and what is found counts only if the line is the same afterwards.

    Parameters
    ----------
    look : callable
        Reads the line, int64[FE_WORDS].
    """
    pid, started, _ = before = _signature(look())
    if pid <= 0 or started <= 0 or process_start_ticks(pid) == started:
        return False
    return _signature(look()) == before


def signed_by_session(look: Callable[[], np.ndarray]) -> int:
    """Number of the session that signed a port line, which has no pid; 0 without one, or while it changes."""
    pid, started, _ = before = _signature(look())
    return started if pid == 0 and _signature(look()) == before else 0


def _signature(line: np.ndarray) -> tuple[int, int, int]:
    return int(line[at.P_PID]), int(line[at.P_STARTED]), int(line[at.P_GENERATION])


def declare_dead(view: RingView, front_end: int) -> int:
    """Raise the fence of a front end known to be gone; the generation to wait for."""
    return int(_raise_fence(view.fe_fence, front_end * at.FE_WORDS + at.F_FENCE))


def wait_drained(view: RingView, front_end: int, generation: int, deadline_s: float) -> bool:
    """Wait until the scheduler has ended everything of a dead front end; False at the deadline."""
    line = front_end * at.FE_WORDS + at.D_DRAINED
    give_up = time.monotonic() + deadline_s
    while _drained(view.fe_sched, line) < generation:
        if time.monotonic() >= give_up:
            return False
        time.sleep(0.001)
    return True
