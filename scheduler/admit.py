"""Admission by policy: all lanes look for the best waiting request, lane 0 seats it."""

from __future__ import annotations

from ring import layout as at
from ring.atomics import lane_barrier
from ring.jit import uncounted
from scheduler import state as sc
from scheduler.blocks import take_next_block
from scheduler.seats import blocks_to_admit, count_decoding, decoding, preempt, take_seat

# words of an offer: slot or seat (-1: none), what it is compared by, a request in service also its own key
OFFERED, KEY, TICKET, OWN_KEY = range(sc.OFFER_WORDS)
VICTIMS = sc.LANES  # the offers of seats lie behind those of waiting requests
GROUP = 16  # offers that one lane compares
NO_VICTIM = sc.NO_SLOT


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
def judge(state, key, victim, lane, lanes):
    """Note in K_DISPLACES whether a waiting request would take a seat if the step were over now. All lanes.

    Beside the step, so that a batch in which nobody is displaced decodes on at once (`foresee`);
    one that the step itself makes the better choice is seen beside the next one.
    """
    if state.core[sc.K_JUDGING] != 0:
        _search(state, key, victim, lane, lanes)
        if lane == 0:
            state.core[sc.K_DISPLACES] = 1 if _is_better(state) else 0


@uncounted
def admit(ring, state, io, key, may_admit, victim, lane, lanes, now):
    """Seat waiting requests, best first, while lane 0 says so in K_ADMITTING. All lanes."""
    core = state.core
    while core[sc.K_ADMITTING] != 0:
        _search(state, key, victim, lane, lanes)
        if lane == 0:
            slot = state.best[OFFERED]
            seated = False
            if may_try(state):
                seated = _try_seat(ring, state, io, may_admit, slot, now)
            if not seated and may_displace(state):
                _displace(ring, state, io, may_admit, slot, now)
            core[sc.K_ADMITTING] = 1 if seated and (may_try(state) or may_displace(state)) else 0
        lane_barrier()


@uncounted
def _search(state, key, victim, lane, lanes):
    """Find the best waiting request and, where it may take a seat, whose: the first offers. All lanes.

    The last lanes take the first seats, and so look at them beside those that look at who waits;
    some lanes then compare some offers each, for one alone would take microseconds on a GPU.
    """
    asked = min(max(state.core[sc.K_WAITING], 1), lanes)
    held = min(state.config[sc.G_SEATS], lanes) if may_displace(state) else 0  # the same for all lanes
    back = lanes - 1 - lane
    if lane < asked:
        _offer_waiting(state, key, lane, lanes)
    if back < held:
        _offer_seat(state, key, victim, back, lanes)
    lane_barrier()
    if lane * GROUP < asked:
        take_best(state, lane * GROUP, 1, min((lane + 1) * GROUP, asked))
    if back * GROUP < held:
        take_best(state, VICTIMS + back * GROUP, 1, VICTIMS + min((back + 1) * GROUP, held))
    lane_barrier()
    if lane == 0:
        take_best(state, 0, GROUP, asked)
    if back == 0 and held > 0:
        take_best(state, VICTIMS, GROUP, VICTIMS + held)
    lane_barrier()  # the next offers would be among those compared


@uncounted
def _offer_waiting(state, key, lane, lanes):
    """Offer the best of a lane's waiting requests: the smallest key, the oldest among equals."""
    best, best_key, best_ticket = sc.NO_SLOT, 0, 0
    for index in range(lane, state.core[sc.K_WAITING], lanes):
        slot = state.waiting[index]
        slot_key = key(state.hot, state.words, slot)
        ticket = state.slots[slot * sc.SLOT_WORDS + sc.SL_TICKET]
        if best == sc.NO_SLOT or slot_key < best_key or (slot_key == best_key and ticket < best_ticket):
            best, best_key, best_ticket = slot, slot_key, ticket
    here = lane * sc.OFFER_WORDS
    state.best[here + OFFERED] = best
    state.best[here + KEY] = best_key
    state.best[here + TICKET] = best_ticket


@uncounted
def _offer_seat(state, key, victim, first, lanes):
    """Offer the decoding seat with the largest key among a lane's: the newest among equals."""
    best, best_key, best_ticket, own_key = NO_VICTIM, 0, 0, 0
    for seat in range(first, state.config[sc.G_SEATS], lanes):
        if not decoding(state, seat):
            continue
        slot = state.seats[seat * sc.SEAT_WORDS + sc.SE_SLOT]
        # the complements: the largest is the smallest then
        seat_key = ~victim(state.hot, state.words, slot)
        ticket = ~state.slots[slot * sc.SLOT_WORDS + sc.SL_TICKET]
        if best == NO_VICTIM or seat_key < best_key or (seat_key == best_key and ticket < best_ticket):
            best, best_key, best_ticket = seat, seat_key, ticket
    if best != NO_VICTIM:
        own_key = key(state.hot, state.words, state.seats[best * sc.SEAT_WORDS + sc.SE_SLOT])
    here = (VICTIMS + first) * sc.OFFER_WORDS
    state.best[here + OFFERED] = best
    state.best[here + KEY] = best_key
    state.best[here + TICKET] = best_ticket
    state.best[here + OWN_KEY] = own_key


@uncounted
def take_best(state, first, stride, end):
    """Put the best of every `stride`-th offer in the place of the first of them."""
    into = first * sc.OFFER_WORDS
    for offer in range(first + stride, end, stride):
        here = offer * sc.OFFER_WORDS
        if state.best[here + OFFERED] == sc.NO_SLOT:
            continue
        key, best_key = state.best[here + KEY], state.best[into + KEY]
        if (
            state.best[into + OFFERED] == sc.NO_SLOT
            or key < best_key
            or (key == best_key and state.best[here + TICKET] < state.best[into + TICKET])
        ):
            for word in range(sc.OFFER_WORDS):
                state.best[into + word] = state.best[here + word]


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
def _is_better(state):
    """Whether the request found is so much better than the victim that it may have its seat, and has room."""
    victim = VICTIMS * sc.OFFER_WORDS
    slot, seat = state.best[OFFERED], state.best[victim + OFFERED]
    if slot == sc.NO_SLOT or seat == NO_VICTIM:
        return False
    gain = state.best[victim + OWN_KEY] - state.best[KEY]
    room = state.core[sc.K_BLOCKS_FREE] + state.seats[seat * sc.SEAT_WORDS + sc.SE_BLOCKS]
    room -= blocks_to_admit(state, slot)
    return gain > state.policy[sc.P_MARGIN] and room >= state.core[sc.K_SEATED] - 1


@uncounted
def _displace(ring, state, io, may_admit, slot, now):
    """Give a waiting request the seat of one in service, if the policy finds it that much better.

    Once a boundary, so that no pair can trade a seat for ever.
    """
    if not _is_better(state) or may_admit(state.hot, state.words, slot) == 0:
        return
    preempt(ring, state, io, state.best[VICTIMS * sc.OFFER_WORDS + OFFERED], now)
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
