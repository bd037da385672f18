"""The scheduler on the CPU over the GPU's graphs: what the device's loops are measured against.

The same `turn` and the same executables; each step is launched by the driver from a thread
that holds no GIL, and waited for.
"""

from __future__ import annotations

from graphs.grid import table_view
from graphs.host_launch import L_CONTEXT, L_STREAM, L_WINDOW, HostLauncher, synchronize, use_context
from graphs.step_io import step_view
from ring import layout as at
from ring.atomics import now_ns, pause, store_release
from ring.jit import njit
from ring.views import ring_view
from scheduler import state as sc
from scheduler.turn import turn


@njit(cache=False)  # calls into the driver by name
def run(words, narrow, state_words, step_words, table_words, launcher_core, key, may_admit, prefill_or_decode,
        victim):  # fmt: skip
    """As `scheduler.loops.cpu.run`; `launcher_core` holds stream and context (`HostLauncher`)."""
    ring = ring_view(words, narrow)
    state = sc.state_view(state_words)
    io = step_view(step_words)
    table = table_view(table_words)
    launcher = HostLauncher(launcher_core)
    if use_context(launcher_core[L_CONTEXT]) != 0:
        store_release(ring.status, at.S_PHASE, at.PHASE_FAULTED)
        return sc.FAULTED
    store_release(ring.status, at.S_PHASE, at.PHASE_RUNNING)
    spins = 0
    while True:
        verdict = turn(
            ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim, 0, 1, now_ns()
        )
        if verdict == sc.STEPPED:
            spins = 0
            if synchronize(launcher_core[L_STREAM]) != 0:
                store_release(ring.status, at.S_PHASE, at.PHASE_FAULTED)
                return sc.FAULTED
        elif verdict == sc.CLOSE_WINDOW:
            state.core[sc.K_WINDOWS] += 1
            state.core[sc.K_WINDOW] = 0  # the driver knows no window
            launcher_core[L_WINDOW] = 0
        elif verdict == sc.PARKED:
            return verdict
        elif verdict == sc.STOPPED or verdict == sc.FAULTED:
            phase = at.PHASE_STOPPED if verdict == sc.STOPPED else at.PHASE_FAULTED
            store_release(ring.status, at.S_PHASE, phase)
            return verdict
        else:
            pause(spins)
            spins += 1
