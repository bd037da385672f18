"""Admission by policy: all lanes look for the best waiting request, lane 0 seats it."""

from __future__ import annotations

from ring import layout as at
from ring.atomics import lane_barrier
from ring.jit import uncounted
from scheduler import state as sc
from scheduler.blocks import take_next_block
from scheduler.seats import blocks_to_admit, count_decoding, decoding, preempt, take_seat


@uncounted
def may_try(state):
    """Whether admission has a chance: somebody waits, a seat is free, and something changed."""
    core = state.core
    return (
        core[sc.K_TRY_ADMIT] != 0
        and core[sc.K_WAITING] > 0
        and core[sc.K_SEATS_FREE] > 0
        and core[sc.K_STOP] != at.STOP
        and core[sc.K_STARVED] == 0
    )


@uncounted
def may_displace(state):
    """Whether a waiting request could take the seat of one in service."""
    core = state.core
    return (
        state.policy[sc.P_PREEMPTIVE] != 0
        and core[sc.K_WAITING] > 0
        and core[sc.K_DECODING] > 0
        and core[sc.K_STOP] != at.STOP
        and core[sc.K_STARVED] == 0
    )


@uncounted
def admit(ring, state, io, key, may_admit, victim, lane, lanes, now):
    """Seat waiting requests, best first, while lane 0 says so in K_ADMITTING. All lanes."""
    core = state.core
    while core[sc.K_ADMITTING] != 0:
        _find_best(state, key, lane, lanes)
        lane_barrier()
        if lane == 0:
            slot = _best_of_lanes(state, min(lanes, sc.LANES))
            seated = False
            if may_try(state):
                seated = _try_seat(ring, state, io, may_admit, slot, now)
            if not seated and may_displace(state):
                _displace(ring, state, io, key, may_admit, victim, slot, now)
            core[sc.K_ADMITTING] = 1 if seated and (may_try(state) or may_displace(state)) else 0
        lane_barrier()


@uncounted
def _find_best(state, key, lane, lanes):
    best, best_key, best_ticket = sc.NO_SLOT, 0, 0
    for index in range(lane, state.core[sc.K_WAITING], lanes):
        slot = state.waiting[index]
        slot_key = key(state.hot, state.words, slot)
        ticket = state.slots[slot * sc.SLOT_WORDS + sc.SL_TICKET]
        if best == sc.NO_SLOT or slot_key < best_key or (slot_key == best_key and ticket < best_ticket):
            best, best_key, best_ticket = slot, slot_key, ticket
    state.best[2 * lane] = best
    state.best[2 * lane + 1] = best_key


@uncounted
def _best_of_lanes(state, lanes):
    best, best_key, best_ticket = sc.NO_SLOT, 0, 0
    for lane in range(lanes):
        slot, slot_key = state.best[2 * lane], state.best[2 * lane + 1]
        if slot == sc.NO_SLOT:
            continue
        ticket = state.slots[slot * sc.SLOT_WORDS + sc.SL_TICKET]
        if best == sc.NO_SLOT or slot_key < best_key or (slot_key == best_key and ticket < best_ticket):
            best, best_key, best_ticket = slot, slot_key, ticket
    return best


@uncounted
def _try_seat(ring, state, io, may_admit, slot, now):
    core = state.core
    # each seated request may want a block soon: admitting into their room would only preempt
    if core[sc.K_BLOCKS_FREE] - blocks_to_admit(state, slot) < core[sc.K_SEATED]:
        core[sc.K_TRY_ADMIT] = 0  # until something is freed
        return False
    if may_admit(state.hot, state.words, slot) == 0:
        return False  # asked again next turn: the policy's mind may change with time alone
    take_seat(ring, state, io, slot, now)
    return True


@uncounted
def _displace(ring, state, io, key, may_admit, victim, slot, now):
    """Give a waiting request the seat of one in service, if the policy finds it that much better.

    Once a boundary, so that no pair can trade a seat for ever.
    """
    core = state.core
    seat = _choose_victim(state, victim)
    if seat < 0:
        return
    here = seat * sc.SEAT_WORDS
    loser = state.seats[here + sc.SE_SLOT]
    gain = key(state.hot, state.words, loser) - key(state.hot, state.words, slot)
    room = core[sc.K_BLOCKS_FREE] + state.seats[here + sc.SE_BLOCKS] - blocks_to_admit(state, slot)
    if gain <= state.policy[sc.P_MARGIN] or room < core[sc.K_SEATED] - 1:
        return
    if may_admit(state.hot, state.words, slot) == 0:
        return
    preempt(ring, state, io, seat, now)
    take_seat(ring, state, io, slot, now)
    count_decoding(state)


@uncounted
def feed_starved(ring, state, io, victim, now):
    """Find a block for each seat that has none for its next token, preempting if it must. Lane 0."""
    core, seats = state.core, state.seats
    if core[sc.K_STARVED] == 0:
        return
    core[sc.K_STARVED] = 0
    for seat in range(state.config[sc.G_SEATS]):
        here = seat * sc.SEAT_WORDS
        if seats[here + sc.SE_STARVED] == 0:
            continue
        seats[here + sc.SE_STARVED] = 0
        if seats[here + sc.SE_SLOT] == sc.NO_SLOT:
            continue
        while core[sc.K_BLOCKS_FREE] == 0 and seats[here + sc.SE_SLOT] != sc.NO_SLOT:
            preempt(ring, state, io, _choose_victim(state, victim), now)
        if seats[here + sc.SE_SLOT] != sc.NO_SLOT:
            take_next_block(state, io, seat)
    core[sc.K_ROWS_STALE] = 1
    count_decoding(state)


@uncounted
def _choose_victim(state, victim):
    """The decoding seat with the largest key; the newest among equals. There is one: the starved seat."""
    best, best_key, best_ticket = -1, 0, 0
    for seat in range(state.config[sc.G_SEATS]):
        if not decoding(state, seat):
            continue
        slot = state.seats[seat * sc.SEAT_WORDS + sc.SE_SLOT]
        key, ticket = victim(state.hot, state.words, slot), state.slots[slot * sc.SLOT_WORDS + sc.SL_TICKET]
        if best < 0 or key > best_key or (key == best_key and ticket > best_ticket):
            best, best_key, best_ticket = seat, key, ticket
    return best
