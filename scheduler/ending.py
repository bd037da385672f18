"""How requests end, apart from the step that finishes them: watch, doom, release.

A lane that sees a cancel, a passed deadline or a dead front end only marks the request
(its *doom*, the reason); lane 0 ends it at the next step boundary. So each request ends
exactly once, by one lane.
"""

from __future__ import annotations

from ring import layout as at
from ring.atomics import fetch_add, lane_barrier, load_acquire, load_relaxed, store_release
from ring.jit import uncounted
from ring.recorder import E_DRAINED, E_FINISH, record
from ring.states import DECODE_COMPLETED, R_ABORTED, R_CANCELLED, R_DEADLINE, R_NONE, R_SHUTDOWN
from ring.words import CANCEL, pack_ctl, req_command, req_incarnation
from scheduler import state as sc

WATCH = 128  # waiting requests that a lane looks at in one turn; the next turn goes on with others


@uncounted
def watch(ring, state, lane, lanes, now):
    """Look at what the host asks, and at every live request for a reason to end; each lane at its own."""
    if lane == 0:
        _read_commands(ring, state)
    for front_end in range(lane, state.front_ends.shape[0] // sc.FRONT_END_WORDS, lanes):
        _watch_front_end(ring, state, front_end)
    lane_barrier()  # all lanes judge by the same stop word and the same deaths
    for seat in range(lane, state.config[sc.G_SEATS], lanes):
        slot = state.seats[seat * sc.SEAT_WORDS + sc.SE_SLOT]
        if slot != sc.NO_SLOT and state.seats[seat * sc.SEAT_WORDS + sc.SE_DOOM] == R_NONE:
            reason = _doom_of(ring, state, slot, now)
            if reason != R_NONE:
                state.seats[seat * sc.SEAT_WORDS + sc.SE_DOOM] = reason
                fetch_add(state.core, sc.K_DOOMED, 1)
    first = state.core[sc.K_WATCHED]
    for index in range(first + lane, min(first + WATCH * lanes, state.core[sc.K_WAITING]), lanes):
        slot = state.waiting[index]
        if state.slots[slot * sc.SLOT_WORDS + sc.SL_DOOM] == R_NONE:
            reason = _doom_of(ring, state, slot, now)
            if reason != R_NONE:
                state.slots[slot * sc.SLOT_WORDS + sc.SL_DOOM] = reason
                fetch_add(state.core, sc.K_DOOMED, 1)


@uncounted
def _read_commands(ring, state):
    """Take the host's words beside the running step: over the bus a load costs a microsecond."""
    stop = load_relaxed(ring.command, at.C_STOP)  # all in flight before the first is used
    park = load_relaxed(ring.command, at.C_PARK)
    # pairs with the host's release of the number: the policy's name is whole
    number = load_acquire(ring.command, at.C_POLICY)
    state.core[sc.K_STOP] = stop
    state.core[sc.K_PARK] = park
    state.core[sc.K_POLICY_ASKED] = number


@uncounted
def watch_others(state, lanes):
    """Where the next turn's watch of the waiting begins. Lane 0, after a barrier."""
    following = state.core[sc.K_WATCHED] + WATCH * lanes
    state.core[sc.K_WATCHED] = following if following < state.core[sc.K_WAITING] else 0


@uncounted
def _watch_front_end(ring, state, front_end):
    # pairs with the host's release of the fence: the dead front end writes no more
    generation = load_acquire(ring.fe_fence, front_end * at.FE_WORDS + at.F_FENCE)
    here = front_end * sc.FRONT_END_WORDS
    if generation > state.front_ends[here + sc.FR_DRAINED] and state.front_ends[here + sc.FR_DYING] == 0:
        state.front_ends[here + sc.FR_DYING] = generation
        fetch_add(state.core, sc.K_DYING, 1)


@uncounted
def _doom_of(ring, state, slot, now):
    record_at = slot * sc.SLOT_WORDS
    request = load_relaxed(ring.req, slot)
    if (
        req_command(request) == CANCEL
        and req_incarnation(request) == state.slots[record_at + sc.SL_INCARNATION]
    ):
        return R_CANCELLED
    front_end = state.slots[record_at + sc.SL_FRONT_END]
    if state.front_ends[front_end * sc.FRONT_END_WORDS + sc.FR_DYING] != 0:
        return R_ABORTED
    if now >= state.slots[record_at + sc.SL_DEADLINE]:
        return R_DEADLINE
    if state.core[sc.K_STOP] == at.STOP:
        return R_SHUTDOWN
    return R_NONE


@uncounted
def leave_waiting(state, slot):
    """Take a slot out of the waiting; the last one moves into its place."""
    core = state.core
    index = state.slots[slot * sc.SLOT_WORDS + sc.SL_WAIT_INDEX]
    last = state.waiting[core[sc.K_WAITING] - 1]
    state.waiting[index] = last
    state.slots[last * sc.SLOT_WORDS + sc.SL_WAIT_INDEX] = index
    core[sc.K_WAITING] -= 1


@uncounted
def end_waiting(ring, state, slot, reason, now):
    """End a request that has no seat. Lane 0."""
    leave_waiting(state, slot)
    state.core[sc.K_TRY_ADMIT] = 1  # it may have been the one that did not fit, before others that do
    record_at = slot * sc.SLOT_WORDS
    generated = state.slots[record_at + sc.SL_GENERATED]
    word = pack_ctl(state.slots[record_at + sc.SL_INCARNATION], generated, reason, DECODE_COMPLETED)
    forget(ring, state, slot, sc.NO_SEAT, generated, reason, now)
    # pairs with the reader's acquire: the answer is whole, the slot is the front end's again
    store_release(ring.ctl, slot * at.CTL_WORDS + at.W0, word)


@uncounted
def forget(ring, state, slot, seat, generated, reason, now):
    """Strike a request that ends off the scheduler's books; its last ctl word is the caller's."""
    record_at = slot * sc.SLOT_WORDS
    state.slots[record_at + sc.SL_LIVE] = 0
    state.slots[record_at + sc.SL_SEAT] = sc.NO_SEAT
    state.slots[record_at + sc.SL_STATE] = DECODE_COMPLETED
    state.front_ends[state.slots[record_at + sc.SL_FRONT_END] * sc.FRONT_END_WORDS + sc.FR_LIVE] -= 1
    state.core[sc.K_FINISHED] += 1
    record(ring.flight, state.core[sc.K_RECORDS], now, E_FINISH, slot, seat, generated, reason)
    state.core[sc.K_RECORDS] += 1


@uncounted
def end_doomed_waiting(ring, state, now):
    """End the waiting requests that lanes marked. Lane 0."""
    index = 0
    while index < state.core[sc.K_WAITING]:
        slot = state.waiting[index]
        reason = state.slots[slot * sc.SLOT_WORDS + sc.SL_DOOM]
        if reason != R_NONE:
            end_waiting(ring, state, slot, reason, now)  # another slot now has this index
        else:
            index += 1


@uncounted
def finish_draining(ring, state, now):
    """Tell the host that a dead front end's slots are quiet, once they are. Lane 0."""
    for front_end in range(state.front_ends.shape[0] // sc.FRONT_END_WORDS):
        here = front_end * sc.FRONT_END_WORDS
        generation = state.front_ends[here + sc.FR_DYING]
        if generation != 0 and state.front_ends[here + sc.FR_LIVE] == 0:
            state.front_ends[here + sc.FR_DYING] = 0
            state.front_ends[here + sc.FR_DRAINED] = generation
            state.core[sc.K_DYING] -= 1
            record(ring.flight, state.core[sc.K_RECORDS], now, E_DRAINED, front_end, generation, 0, 0)
            state.core[sc.K_RECORDS] += 1
            # pairs with the successor's acquire: all its predecessor's slots are completed
            store_release(ring.fe_sched, front_end * at.FE_WORDS + at.D_DRAINED, generation)
