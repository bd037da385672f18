"""Both sides of the claim hammer in protocol code: one source for the GPU's lanes and the host.

A slot's descriptor carries a mark made from slot and incarnation; who wins the claim checks it
(nobody else's, not torn, not old), answers with a token made from it and completes the slot.
The front end checks token, reason and that the incarnation was won exactly once.
"""

from __future__ import annotations

from ring import layout as at
from ring.atomics import fetch_add, load_acquire, load_relaxed, now_ns, pause, store_release
from ring.jit import njit
from ring.states import DECODE_COMPLETED, R_CANCELLED, R_LENGTH, is_live
from ring.words import (
    CANCEL,
    RELEASE,
    SLOTS_PER_DOORBELL,
    SUBMIT,
    ctl_incarnation,
    ctl_reason,
    ctl_state,
    next_incarnation,
    pack_ctl,
    pack_req,
    req_command,
    req_incarnation,
)
from scheduler.claim import claim

# words of TALLIES, a line apart where many write
T_DONE, T_CONTENDERS, T_WON, T_VIOLATIONS, T_LATE = 0, 8, 16, 24, 32
TALLIES = 40
# what a look at a slot found
WAITING, FINISHED, BROKEN = 0, 1, 2
QUIET_NS = 30_000_000_000  # without any news for so long, a front end gives up


@njit
def mark(slot, incarnation):
    """What a descriptor says to the winner."""
    return (incarnation * 2_654_435_761 + slot * 40_503 + 12_345) & 0x3FFFFFFFFFFFFF


@njit
def write_request(ring, slot, incarnation):
    """Descriptor, then `req` = SUBMIT."""
    here = slot * at.DESCRIPTOR_WORDS
    value = mark(slot, incarnation)
    ring.descriptor[here + at.Q_SEED] = value
    ring.descriptor[here + at.Q_TENANT] = value ^ 0x5555
    store_release(ring.req, slot, pack_req(incarnation, SUBMIT))  # pairs with the acquire in claim


@njit
def ring_doorbell(ring, slot, incarnation):
    """The level of the slot's bit; this front end alone writes the word."""
    word, bit = slot // SLOTS_PER_DOORBELL, slot % SLOTS_PER_DOORBELL
    bits = load_relaxed(ring.doorbell, word) & ~(1 << bit)
    store_release(ring.doorbell, word, bits | ((incarnation & 1) << bit))


@njit
def contend(ring, state, wins, slot):
    """A claimer's look at a slot: 0 nothing to claim, 1 lost, 2 won and served, 3 served something broken."""
    request = load_relaxed(ring.req, slot)
    word = load_relaxed(ring.ctl, slot * at.CTL_WORDS + at.W0)
    if req_incarnation(request) != next_incarnation(ctl_incarnation(word)) or is_live(ctl_state(word)):
        return 0
    if not claim(ring, state, slot):
        return 1
    incarnation = ctl_incarnation(load_relaxed(ring.ctl, slot * at.CTL_WORDS + at.W0))
    fetch_add(wins, slot, 1)
    here = slot * at.DESCRIPTOR_WORDS
    value = ring.descriptor[here + at.Q_SEED]
    whole = value == mark(slot, incarnation) and ring.descriptor[here + at.Q_TENANT] == value ^ 0x5555
    ring.tokens[slot] = value & 0x3FFFFFFF
    request = load_relaxed(ring.req, slot)
    reason = R_LENGTH
    if req_command(request) == CANCEL and req_incarnation(request) == incarnation:
        reason = R_CANCELLED
    over = pack_ctl(incarnation, 1, reason, DECODE_COMPLETED)
    store_release(ring.ctl, slot * at.CTL_WORDS + at.W0, over)  # pairs with the acquire in look
    return 2 if whole else 3


@njit
def look(ring, wins, slot, incarnation, cancelled):
    """A front end's look at its request: WAITING, FINISHED as it must, or BROKEN."""
    word = load_acquire(ring.ctl, slot * at.CTL_WORDS + at.W0)  # pairs with the release in contend
    if ctl_incarnation(word) != incarnation or ctl_state(word) != DECODE_COMPLETED:
        return WAITING
    if ring.tokens[slot] != mark(slot, incarnation) & 0x3FFFFFFF:
        return BROKEN
    if ctl_reason(word) == R_CANCELLED and not cancelled:
        return BROKEN
    if load_relaxed(wins, slot) != incarnation:  # incarnations begin at 1 and are won once each
        return BROKEN
    return FINISHED


@njit
def host_front_end(ring, wins, states, seed, requests, die_after, tallies):
    """A front end on the host: submit, cancel one in eight, check, release; round and round.

    Parameters
    ----------
    states : int64[slots * 2]
        Incarnation in flight of each slot (0: none), and whether it was cancelled.
    requests : int
        End after so many finished requests; what is in flight is waited for.
    die_after : int
        Return in the middle of a submission, `req` written and doorbell not, after so many
        finished requests; 0: live.

    Returns
    -------
    int
        Requests finished; `tallies` has violations and looks that found nothing for too long.
    """
    finished, idle, since, slots = 0, 0, 0, states.shape[0] // 2
    open_requests = 0
    for slot in range(slots):
        open_requests += states[2 * slot] != 0
    while finished < requests or open_requests > 0:
        before = finished
        for slot in range(slots):
            incarnation = states[2 * slot]
            if incarnation == 0:
                if finished + open_requests >= requests:
                    continue
                word = load_acquire(ring.ctl, slot * at.CTL_WORDS + at.W0)
                incarnation = next_incarnation(ctl_incarnation(word))
                write_request(ring, slot, incarnation)
                states[2 * slot], states[2 * slot + 1] = incarnation, 0
                open_requests += 1
                if die_after != 0 and finished >= die_after:
                    return finished
                ring_doorbell(ring, slot, incarnation)
                continue
            seed = (seed * 1_103_515_245 + 12_345) & 0x7FFFFFFF
            if states[2 * slot + 1] == 0 and (seed >> 16) & 7 == 0:
                states[2 * slot + 1] = 1
                store_release(ring.req, slot, pack_req(incarnation, CANCEL))
            found = look(ring, wins, slot, incarnation, states[2 * slot + 1] != 0)
            if found == WAITING:
                continue
            if found == BROKEN:
                tallies[T_VIOLATIONS] += 1
            store_release(ring.req, slot, pack_req(incarnation, RELEASE))
            states[2 * slot] = 0
            open_requests -= 1
            finished += 1
        if finished != before:
            idle = 0
            continue
        if idle == 0:
            since = now_ns()
        idle += 1
        pause(idle)
        if idle % 256 == 0 and now_ns() - since > QUIET_NS:
            tallies[T_LATE] += 1
            return finished
    return finished


@njit
def adopt(ring, states):
    """A successor's first look: how many slots' last requests did not end in time."""
    left, end = 0, now_ns() + QUIET_NS
    for slot in range(states.shape[0] // 2):
        states[2 * slot] = states[2 * slot + 1] = 0
        settled, spins = False, 0
        while not settled and (spins % 256 != 255 or now_ns() < end):
            pause(spins)
            spins += 1
            request = load_relaxed(ring.req, slot)
            word = load_acquire(ring.ctl, slot * at.CTL_WORDS + at.W0)
            settled = req_incarnation(request) == ctl_incarnation(word) and not is_live(ctl_state(word))
        left += not settled
        ring_doorbell(ring, slot, ctl_incarnation(word))
    return left
