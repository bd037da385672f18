"""The scheduler on the CPU over the GPU's graphs: what the device's loops are measured against.

The same `turn` and the same executables; each step is launched by the driver from a thread that
holds no GIL. `run` waits for each step. `run_pipelined` launches the next decode step behind it
(`scheduler.ahead`), so the launch and all that the scheduler does are hidden behind a step.
"""

from __future__ import annotations

from graphs.grid import table_view
from graphs.host_launch import (
    L_CONTEXT,
    L_STREAM,
    L_WINDOW,
    NOT_READY,
    HostLauncher,
    HostPipelined,
    query,
    synchronize,
    use_context,
)
from graphs.launcher import runs_ahead
from graphs.step_io import step_view
from ring import layout as at
from ring.atomics import now_ns, pause, store_release
from ring.jit import njit, uncounted
from ring.views import ring_view
from scheduler import state as sc
from scheduler.turn import turn

QUERIED = 64  # turns that found the step running, before the driver is asked whether it still can


@njit(cache=False)  # calls into the driver by name
def run(words, narrow, state_words, step_words, table_words, launcher_core, key, may_admit, prefill_or_decode,
        victim):  # fmt: skip
    """As `scheduler.loops.cpu.run`; `launcher_core` holds stream and context (`HostLauncher`)."""
    return _serve(
        ring_view(words, narrow), sc.state_view(state_words), step_view(step_words), table_view(table_words),
        HostLauncher(launcher_core), key, may_admit, prefill_or_decode, victim,
    )  # fmt: skip


@njit(cache=False)
def run_pipelined(words, narrow, state_words, step_words, table_words, launcher_core, key, may_admit,
                  prefill_or_decode, victim):  # fmt: skip
    """As `run`, decode steps launched ahead. A step's end is seen by its flag: the stream has work behind it.

    The turn looks at the flag for a while (``G_POLL_SPINS``), so a step in flight is never slept on.
    """
    return _serve(
        ring_view(words, narrow), sc.state_view(state_words), step_view(step_words), table_view(table_words),
        HostPipelined(launcher_core), key, may_admit, prefill_or_decode, victim,
    )  # fmt: skip


@uncounted
def _serve(ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim):
    core = launcher.core
    if use_context(core[L_CONTEXT]) != 0:
        return _fault(ring)
    store_release(ring.status, at.S_PHASE, at.PHASE_RUNNING)
    spins = 0
    while True:
        verdict = turn(
            ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim, 0, 1, now_ns()
        )
        if verdict == sc.STEPPED:
            spins = 0
            if not runs_ahead(launcher) and synchronize(core[L_STREAM]) != 0:
                return _fault(ring)
        elif verdict == sc.CLOSE_WINDOW:
            _open_window(state, core)
        elif verdict == sc.PARKED or verdict == sc.STOPPED or verdict == sc.FAULTED:
            return _leave(ring, verdict)
        elif runs_ahead(launcher) and verdict == sc.BUSY:
            spins += 1
            if spins % QUERIED == 0 and _is_broken(query(core[L_STREAM])):
                return _fault(ring)
        else:
            pause(spins)
            spins += 1


@uncounted
def _is_broken(code):
    """Whether what a stream answered to a query is an error: its flag would never come."""
    return code != 0 and code != NOT_READY


@uncounted
def _open_window(state, launcher_core):
    state.core[sc.K_WINDOWS] += 1
    state.core[sc.K_WINDOW] = 0  # the driver knows no window
    launcher_core[L_WINDOW] = 0


@uncounted
def _leave(ring, verdict):
    """Say why the loop ends; who parked it knows."""
    if verdict != sc.PARKED:
        phase = at.PHASE_STOPPED if verdict == sc.STOPPED else at.PHASE_FAULTED
        store_release(ring.status, at.S_PHASE, phase)
    return verdict


@uncounted
def _fault(ring):
    """The driver failed: nothing can be launched, or nothing will end."""
    store_release(ring.status, at.S_PHASE, at.PHASE_FAULTED)
    return sc.FAULTED
