"""Seats: who is in service. Taking a seat, leaving it, being preempted from it. Lane 0."""

from __future__ import annotations

from graphs.step_io import (
    LOGPROBS,
    SAMPLING_WORDS,
    SEED,
    SUPPRESS_EOS,
    TEMPERATURE_MICRO,
    TOP_K,
    TOP_P_MICRO,
)
from ring import layout as at
from ring.atomics import store_release
from ring.jit import uncounted
from ring.layout import DESCRIPTOR_WORDS
from ring.recorder import E_ADMIT, E_PREEMPT, record
from ring.states import DECODE_PAUSED, DECODE_PROCESSING, PREFILL_PROCESSING, R_NONE
from ring.words import pack_ctl
from scheduler import state as sc
from scheduler.blocks import blocks_for, free_blocks, take_blocks
from scheduler.collect import end_seat
from scheduler.ending import forget, leave_waiting
from scheduler.publish import publish_seat


@uncounted
def blocks_to_admit(state, slot):
    """Blocks a waiting request takes with its seat: all it has so far, and its next token."""
    record_at = slot * sc.SLOT_WORDS
    return blocks_for(
        state, state.slots[record_at + sc.SL_PROMPT_LEN] + state.slots[record_at + sc.SL_GENERATED] + 1
    )


@uncounted
def take_seat(ring, state, io, slot, now):
    """Seat a waiting request; its prefill is next. The caller saw that seat and blocks are free.

    A request that was preempted comes back with the tokens it had: all but the prompt's end
    is recomputed, nothing is generated twice.
    """
    core, seats, slots, descriptors = state.core, state.seats, state.slots, ring.descriptor
    record_at, words = slot * sc.SLOT_WORDS, slot * DESCRIPTOR_WORDS
    leave_waiting(state, slot)
    core[sc.K_SEATS_FREE] -= 1
    seat = state.free_seats[core[sc.K_SEATS_FREE]]
    core[sc.K_SEATED] += 1
    here = seat * sc.SEAT_WORDS
    generated = slots[record_at + sc.SL_GENERATED]
    seats[here + sc.SE_SLOT] = slot
    seats[here + sc.SE_STATE] = PREFILL_PROCESSING
    seats[here + sc.SE_W0] = 0  # differs from any word: publish will write it
    seats[here + sc.SE_INCARNATION] = slots[record_at + sc.SL_INCARNATION]
    seats[here + sc.SE_TICKET] = slots[record_at + sc.SL_TICKET]
    seats[here + sc.SE_FRONT_END] = slots[record_at + sc.SL_FRONT_END]
    seats[here + sc.SE_PROMPT_START] = descriptors[words + at.Q_PROMPT_START]
    seats[here + sc.SE_PROMPT_LEN] = slots[record_at + sc.SL_PROMPT_LEN]
    seats[here + sc.SE_OUTPUT_START] = descriptors[words + at.Q_OUTPUT_START]
    seats[here + sc.SE_MAX_TOKENS] = descriptors[words + at.Q_MAX_TOKENS]
    seats[here + sc.SE_MIN_TOKENS] = descriptors[words + at.Q_MIN_TOKENS]
    seats[here + sc.SE_IGNORE_EOS] = descriptors[words + at.Q_FLAGS] & at.FLAG_IGNORE_EOS
    seats[here + sc.SE_LOGPROBS] = descriptors[words + at.Q_LOGPROBS]
    seats[here + sc.SE_LOGPROBS_START] = descriptors[words + at.Q_LOGPROBS_START]
    seats[here + sc.SE_COMPUTED] = 0
    seats[here + sc.SE_TARGET] = slots[record_at + sc.SL_PROMPT_LEN] + generated
    seats[here + sc.SE_GENERATED] = generated
    seats[here + sc.SE_DOOM] = R_NONE
    seats[here + sc.SE_REASON] = R_NONE
    seats[here + sc.SE_STARVED] = 0
    stops = descriptors[words + at.Q_STOP_COUNT]
    seats[here + sc.SE_STOP_COUNT] = stops
    for i in range(stops):
        seats[here + sc.SE_STOP_0 + i] = descriptors[words + at.Q_STOP_0 + i]
    sampling = seat * SAMPLING_WORDS
    io.sampling[sampling + TEMPERATURE_MICRO] = descriptors[words + at.Q_TEMPERATURE_MICRO]
    io.sampling[sampling + TOP_P_MICRO] = descriptors[words + at.Q_TOP_P_MICRO]
    io.sampling[sampling + TOP_K] = descriptors[words + at.Q_TOP_K]
    io.sampling[sampling + SEED] = descriptors[words + at.Q_SEED]
    io.sampling[sampling + LOGPROBS] = seats[here + sc.SE_LOGPROBS]
    io.sampling[sampling + SUPPRESS_EOS] = 1 if generated < seats[here + sc.SE_MIN_TOKENS] else 0
    slots[record_at + sc.SL_SEAT] = seat
    slots[record_at + sc.SL_STATE] = PREFILL_PROCESSING
    slots[record_at + sc.SL_SINCE] = now
    blocks = blocks_to_admit(state, slot)
    take_blocks(state, io, seat, blocks)
    record(ring.flight, core[sc.K_RECORDS], now, E_ADMIT, slot, seat, seats[here + sc.SE_TARGET], blocks)
    core[sc.K_RECORDS] += 1
    return seat


@uncounted
def _vacate(state, io, seat):
    """Free a seat and its blocks."""
    core = state.core
    freed = free_blocks(state, io, seat)
    state.seats[seat * sc.SEAT_WORDS + sc.SE_SLOT] = sc.NO_SLOT
    state.free_seats[core[sc.K_SEATS_FREE]] = seat
    core[sc.K_SEATS_FREE] += 1
    core[sc.K_SEATED] -= 1
    core[sc.K_ROWS_STALE] = 1
    core[sc.K_TRY_ADMIT] = 1
    return freed


@uncounted
def reap(ring, state, io, now):
    """Free the seats whose requests ended in this step, and end the doomed ones."""
    core, seats = state.core, state.seats
    if core[sc.K_ENDED] == 0 and core[sc.K_DOOMED] == 0:
        return
    doomed = core[sc.K_DOOMED] != 0
    core[sc.K_DOOMED] = 0
    for seat in range(state.config[sc.G_SEATS]):
        here = seat * sc.SEAT_WORDS
        slot = seats[here + sc.SE_SLOT]
        if slot == sc.NO_SLOT:
            continue
        if doomed and seats[here + sc.SE_REASON] == R_NONE and seats[here + sc.SE_DOOM] != R_NONE:
            end_seat(state, seat, seats[here + sc.SE_DOOM])
        if seats[here + sc.SE_REASON] != R_NONE:
            state.slots[slot * sc.SLOT_WORDS + sc.SL_GENERATED] = seats[here + sc.SE_GENERATED]
            forget(ring, state, slot, seat, seats[here + sc.SE_GENERATED], seats[here + sc.SE_REASON], now)
            _vacate(state, io, seat)
    core[sc.K_ENDED] = 0


@uncounted
def preempt(ring, state, io, seat, now):
    """Send a decoding request back to the waiting; it keeps its tokens and its ticket.

    Its ctl word says DECODE_PAUSED until it has a seat again.
    """
    core, seats, here = state.core, state.seats, seat * sc.SEAT_WORDS
    slot = seats[here + sc.SE_SLOT]
    record_at = slot * sc.SLOT_WORDS
    generated = seats[here + sc.SE_GENERATED]
    state.slots[record_at + sc.SL_GENERATED] = generated
    state.slots[record_at + sc.SL_SEAT] = sc.NO_SEAT
    state.slots[record_at + sc.SL_STATE] = DECODE_PAUSED
    state.slots[record_at + sc.SL_SINCE] = now
    state.slots[record_at + sc.SL_DOOM] = seats[here + sc.SE_DOOM]
    state.slots[record_at + sc.SL_WAIT_INDEX] = core[sc.K_WAITING]
    state.waiting[core[sc.K_WAITING]] = slot
    core[sc.K_WAITING] += 1
    # At once, not beside the next graph: in this very turn the request may get another seat, whose
    # control word must not be overtaken and whose prefill reads the last token from the extent.
    publish_seat(ring, state, io, seat)
    word = pack_ctl(seats[here + sc.SE_INCARNATION], generated, R_NONE, DECODE_PAUSED)
    store_release(ring.ctl, slot * at.CTL_WORDS + at.W0, word)
    freed = _vacate(state, io, seat)
    core[sc.K_PREEMPTIONS] += 1
    record(ring.flight, core[sc.K_RECORDS], now, E_PREEMPT, slot, seat, generated, freed)
    core[sc.K_RECORDS] += 1


@uncounted
def decoding(state, seat):
    """Whether a seat holds a request between its decode steps."""
    status = state.seats[seat * sc.SEAT_WORDS + sc.SE_STATE]
    return state.seats[seat * sc.SEAT_WORDS + sc.SE_SLOT] != sc.NO_SLOT and (
        status == DECODE_PROCESSING or status == DECODE_PAUSED
    )


@uncounted
def count_decoding(state):
    """Seats that decode; also kept in K_DECODING."""
    count = 0
    for seat in range(state.config[sc.G_SEATS]):
        if decoding(state, seat):
            count += 1
    state.core[sc.K_DECODING] = count
    return count
