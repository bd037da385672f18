"""Going on after a fault: on the same state, or on a ring whose engine is gone.

What was queued is kept, in its order; what was in service ends with an error, since it may
be what broke the engine.
"""

from __future__ import annotations

import numpy as np

from graphs.step_io import DONE, FAULT, TICKET
from ring import layout as at
from ring.atomics import load_acquire, load_relaxed, store_release
from ring.jit import njit
from ring.states import DECODE_COMPLETED, PREFILL_PENDING, R_ERROR, R_NONE, is_live
from ring.words import SLOTS_PER_DOORBELL, ctl_incarnation, ctl_state, ctl_tokens, pack_ctl
from scheduler import state as sc
from scheduler.claim import enqueue
from scheduler.collect import note_end


@njit
def abandon(state, io):
    """Make a faulted state ready for another run; requests in service will end with an error.

    The caller saw that no step runs any more: nothing may write the step buffer from now on.
    """
    core = state.core
    for seat in range(state.config[sc.G_SEATS]):
        here = seat * sc.SEAT_WORDS
        if state.seats[here + sc.SE_SLOT] == sc.NO_SLOT:
            continue
        if state.seats[here + sc.SE_REASON] != R_NONE:
            note_end(state, here, state.seats[here + sc.SE_REASON])  # it ended before the step given up
        elif state.seats[here + sc.SE_DOOM] == R_NONE:
            state.seats[here + sc.SE_DOOM] = R_ERROR
            core[sc.K_DOOMED] += 1
    core[sc.K_IN_FLIGHT] = sc.NOTHING
    core[sc.K_STEP] += core[sc.K_AHEAD]
    core[sc.K_AHEAD] = 0
    core[sc.K_WINDOW] = 0
    core[sc.K_ERROR] = sc.NO_ERROR
    core[sc.K_ERROR_ARG] = 0
    io.control[FAULT] = 0
    io.control[TICKET] = core[sc.K_STEP]
    store_release(io.control, DONE, core[sc.K_STEP])  # the step that was given up counts as over


@njit
def _forget_slots(ring, state):
    """Take over incarnations and logs; end what was in service. Returns how many wait."""
    waiting = 0
    for slot in range(ring.req.shape[0]):
        # pairs with the dead scheduler's releases of ctl
        word = load_acquire(ring.ctl, slot * at.CTL_WORDS + at.W0)
        incarnation, status = ctl_incarnation(word), ctl_state(word)
        if is_live(status) and status != PREFILL_PENDING:
            over = pack_ctl(incarnation, ctl_tokens(word), R_ERROR, DECODE_COMPLETED)
            store_release(ring.ctl, slot * at.CTL_WORDS + at.W0, over)
        elif status == PREFILL_PENDING:
            waiting += 1
        state.slots[slot * sc.SLOT_WORDS + sc.SL_INCARNATION] = incarnation
        if incarnation & 1:
            state.parity[slot // SLOTS_PER_DOORBELL] |= 1 << (slot % SLOTS_PER_DOORBELL)
    for front_end in range(state.front_ends.shape[0] // sc.FRONT_END_WORDS):
        here, there = front_end * sc.FRONT_END_WORDS, front_end * at.FE_WORDS
        head = load_relaxed(ring.fe_sched, there + at.D_LOG_HEAD)
        state.front_ends[here + sc.FR_LOG_HEAD] = head
        state.front_ends[here + sc.FR_LOG_PUBLISHED] = head
        state.front_ends[here + sc.FR_DRAINED] = load_relaxed(ring.fe_sched, there + at.D_DRAINED)
    return waiting


@njit
def _enqueue_in_order(ring, state, order, now):
    for slot in order:
        enqueue(ring, state, slot, now)


def adopt(ring, state, now: int) -> tuple[int, int]:
    """Take over a ring from an engine that is gone, into a fresh state.

    Parameters
    ----------
    ring : ring.views.RingView
    state : scheduler.state.SchedulerState
        Fresh (`scheduler.state.make_state`).
    now : int
        Nanoseconds; deadlines of queued requests begin anew, since clocks may differ.

    Returns
    -------
    kept, ended : int
        Requests that are queued again, and those that were in service and ended with ERROR.
    """
    records = ring.ctl.reshape(-1, at.CTL_WORDS)
    states = records[:, at.W0] & 0xF
    ended = int(np.count_nonzero((states > PREFILL_PENDING) & (states < DECODE_COMPLETED)))
    kept = _forget_slots(ring, state)
    pending = np.flatnonzero(states == PREFILL_PENDING)
    order = pending[np.argsort(records[pending, at.W1], kind="stable")]  # W1: the ticket they had
    last = ring.flight.reshape(-1, at.FLIGHT_WORDS)[:, 0].max()
    state.core[sc.K_RECORDS] = last
    _enqueue_in_order(ring, state, order, now)
    return kept, ended
