"""The scheduler's loop on the CPU: a thread that never returns to Python."""

from __future__ import annotations

from graphs.grid import table_view
from graphs.launcher import launcher_view, open_window, pipelined_view
from graphs.step_io import step_view
from ring import layout as at
from ring.atomics import now_ns, pause, store_release
from ring.jit import njit, uncounted
from ring.recorder import E_WINDOW, record
from ring.views import ring_view
from scheduler import state as sc
from scheduler.turn import solo_turn


@njit
def run(words, narrow, state_words, step_words, table_words, launcher_words, key, may_admit,
        prefill_or_decode, victim):  # fmt: skip
    """Turn until the ring's command words say stop or park, or a fault. Returns the last verdict.

    Parameters
    ----------
    words, narrow : int64[n], int32[2 n]
        The ring, and the same memory as int32.
    state_words, step_words, table_words, launcher_words : int64[:]
        Scheduler state, step buffer, graph table, launcher.
    key, may_admit, prefill_or_decode, victim : callable
        The policy.
    """
    return _serve(
        ring_view(words, narrow), sc.state_view(state_words), step_view(step_words), table_view(table_words),
        launcher_view(launcher_words), key, may_admit, prefill_or_decode, victim,
    )  # fmt: skip


@njit
def run_pipelined(words, narrow, state_words, step_words, table_words, launcher_words, key, may_admit,
                  prefill_or_decode, victim):  # fmt: skip
    """As `run`, decode steps launched ahead (`scheduler.ahead`)."""
    return _serve(
        ring_view(words, narrow), sc.state_view(state_words), step_view(step_words), table_view(table_words),
        pipelined_view(launcher_words), key, may_admit, prefill_or_decode, victim,
    )  # fmt: skip


@uncounted
def _serve(ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim):
    store_release(ring.status, at.S_PHASE, at.PHASE_RUNNING)
    spins = 0
    while True:
        now = now_ns()
        verdict = solo_turn(ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim, now)
        if verdict == sc.BUSY or verdict == sc.IDLE:
            pause(spins)
            spins += 1
            continue
        spins = 0
        if verdict == sc.CLOSE_WINDOW:
            close_window(ring, state, launcher, now)
        elif verdict == sc.PARKED:
            store_release(ring.status, at.S_PHASE, at.PHASE_PARKED)
            return verdict
        elif verdict == sc.STOPPED or verdict == sc.FAULTED:
            phase = at.PHASE_STOPPED if verdict == sc.STOPPED else at.PHASE_FAULTED
            store_release(ring.status, at.S_PHASE, phase)
            return verdict


@uncounted
def close_window(ring, state, launcher, now):
    """End a window of launches at a step boundary, as the tail launch does on the device."""
    record(ring.flight, state.core[sc.K_RECORDS], now, E_WINDOW, state.core[sc.K_WINDOW], 0, 0, 0)
    state.core[sc.K_RECORDS] += 1
    state.core[sc.K_WINDOWS] += 1
    state.core[sc.K_WINDOW] = 0
    open_window(launcher)
