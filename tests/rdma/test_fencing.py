"""Who is dead: told by a line that another process may be writing."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from rdma.fencing import front_end_is_dead, holder_ended, signed_by_session
from ring import layout as at
from ring.memory import process_start_ticks


def line(pid: int, started: int, generation: int = 3) -> np.ndarray:
    words = np.zeros(at.FE_WORDS, np.int64)
    words[[at.P_PID, at.P_STARTED, at.P_GENERATION]] = pid, started, generation
    return words


def looking_at(*lines: np.ndarray):
    """One line after the other, the last one from then on."""
    left = list(lines)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


@pytest.fixture(scope="module")
def ended() -> tuple[int, int]:
    """Pid and start time of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = process_start_ticks(process.pid)
    return process.pid, started


def test_a_process_that_ended_is_told_from_one_that_lives(ended):
    own = os.getpid()
    assert holder_ended(looking_at(line(*ended)))
    assert not holder_ended(looking_at(line(own, process_start_ticks(own))))
    assert holder_ended(looking_at(line(own, 1))), "the pid is another process's by now"
    assert not holder_ended(looking_at(line(0, 77))), "a front end on another host"


def test_a_line_of_two_moments_is_nobody_s(ended):
    own, started = os.getpid(), process_start_ticks(os.getpid())
    leaving = line(own, 0)  # its pid read before, its start time after it left
    assert not holder_ended(looking_at(leaving, line(0, 0)))
    assert not holder_ended(looking_at(leaving)), "nor while it stands like that"
    coming = line(own, ended[1])  # the pid of a successor beside its predecessor's start time
    assert not holder_ended(looking_at(coming, line(own, started)))
    assert not holder_ended(looking_at(line(*ended), line(*ended, generation=4))), "somebody took the place"


def test_a_session_signs_without_a_pid():
    assert signed_by_session(looking_at(line(0, 77))) == 77
    assert signed_by_session(looking_at(line(0, 0))) == 0
    own, started = os.getpid(), process_start_ticks(os.getpid())
    assert signed_by_session(looking_at(line(own, started))) == 0, "a front end of this host"
    assert signed_by_session(looking_at(line(0, started), line(own, started))) == 0, "one that just came"


def test_of_a_generation_before_the_last_death_nobody_is_left(make_ring, ended):
    view = make_ring().view
    view.fe_port[: at.FE_WORDS] = line(*ended, generation=0)
    assert front_end_is_dead(view, 0)
    view.fe_fence[at.F_FENCE] = 1
    assert not front_end_is_dead(view, 0), "its death is known"
