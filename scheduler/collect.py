"""After a step: each lane takes its seats' tokens and decides whether they end.

In two parts. `collect` is all that the next graph needs, and short: the launch waits for it.
`note` works out what is to be published and runs beside the graph that was launched, or before
the batch is changed. Nothing is written to the ring here; it waits in the seat's ``OUT`` words.
"""

from __future__ import annotations

from graphs.step_io import FAULT, SAMPLING_WORDS, SUPPRESS_EOS, record_at
from ring.atomics import fetch_add, load_relaxed
from ring.jit import uncounted
from ring.states import (
    DECODE_COMPLETED,
    DECODE_PROCESSING,
    R_ERROR,
    R_LENGTH,
    R_NONE,
    R_STOP,
)
from ring.words import pack_ctl
from scheduler import state as sc
from scheduler.blocks import extend

NO_TOKEN = -1


@uncounted
def collect(ring, state, io, lane, lanes):
    """Take the results of the step that just completed, if there was one; prepare the next input."""
    kind = state.core[sc.K_IN_FLIGHT]
    rows = state.core[sc.K_IN_FLIGHT_ROWS]
    fault = load_relaxed(io.control, FAULT)
    if kind == sc.DECODE_STEP:
        for row in range(lane, rows, lanes):
            seat = state.rows[row]
            state.seats[seat * sc.SEAT_WORDS + sc.SE_COMPUTED] += 1
            _collect_token(state, io, seat, fault)
    elif kind == sc.PREFILL_STEP:
        for run in range(lane, rows, lanes):
            seat = io.run_seat[run]
            state.seats[seat * sc.SEAT_WORDS + sc.SE_COMPUTED] += io.run_start[run + 1] - io.run_start[run]
            if fault != 0 or io.run_samples[run] != 0:
                _collect_token(state, io, seat, fault)
    if lane == 0:  # last: storing it earlier would wait for it
        state.core[sc.K_FAULT] = fault


@uncounted
def _collect_token(state, io, seat, fault):
    # ordered by the acquire of DONE and the barrier after it; loaded beside the fault word, not after it
    token = load_relaxed(io.out_token, seat)
    if take_token(state, seat, token, fault) == R_NONE:
        feed(state, io, seat, token)


@uncounted
def take_token(state, seat, token, fault):
    """Count a seat's token of this step; the reason for which its request ends, R_NONE if it goes on."""
    seats, here = state.seats, seat * sc.SEAT_WORDS
    generated = seats[here + sc.SE_GENERATED] + 1
    reason = R_ERROR
    if fault == 0:
        seats[here + sc.SE_GENERATED] = generated
        seats[here + sc.SE_OUT_TOKEN] = token
        reason = _reason_to_finish(state, here, token, generated)
    if reason != R_NONE:
        seats[here + sc.SE_REASON] = reason
        fetch_add(state.core, sc.K_ENDED, 1)
    return reason


@uncounted
def feed(state, io, seat, token):
    """Make a token the seat's next input."""
    seats, here = state.seats, seat * sc.SEAT_WORDS
    generated = seats[here + sc.SE_GENERATED]
    io.seat_token[seat] = token
    io.seat_position[seat] = seats[here + sc.SE_COMPUTED]
    io.sampling[seat * SAMPLING_WORDS + SUPPRESS_EOS] = 1 if generated < seats[here + sc.SE_MIN_TOKENS] else 0
    extend(state, io, seat)


@uncounted
def note(state, io, kind, lane, lanes):
    """Work out what the step of `kind` that was collected has to publish. All lanes."""
    rows = state.core[sc.K_COLLECTED_ROWS]
    if kind == sc.DECODE_STEP:
        for row in range(lane, rows, lanes):
            note_token(state, state.rows[row])
    elif kind == sc.PREFILL_STEP:
        for run in range(lane, rows, lanes):
            if state.core[sc.K_FAULT] != 0 or io.run_samples[run] != 0:
                note_token(state, io.run_seat[run])


@uncounted
def note_token(state, seat):
    """Note a seat's token, and its end if it ended."""
    seats, here = state.seats, seat * sc.SEAT_WORDS
    if state.core[sc.K_FAULT] != 0:
        note_end(state, here, R_ERROR)
        return
    note_more(state, seat)
    if seats[here + sc.SE_REASON] != R_NONE:
        note_end(state, here, seats[here + sc.SE_REASON])
        return
    if state.policy[sc.P_ACCOUNTING] != 0:
        owner = state.slots[seats[here + sc.SE_SLOT] * sc.SLOT_WORDS + sc.SL_TENANT] % sc.TENANTS
        fetch_add(state.policy, sc.P_ACCOUNTS + owner, 1)


@uncounted
def note_more(state, seat):
    """Note a seat's token, of a request that is still in service."""
    seats, here = state.seats, seat * sc.SEAT_WORDS
    generated = seats[here + sc.SE_GENERATED]
    seats[here + sc.SE_STATE] = DECODE_PROCESSING
    seats[here + sc.SE_OUT_INDEX] = seats[here + sc.SE_OUTPUT_START] + generated - 1
    seats[here + sc.SE_OUT_SLOT] = seats[here + sc.SE_SLOT]
    seats[here + sc.SE_OUT_FRONT_END] = seats[here + sc.SE_FRONT_END]
    pairs = seats[here + sc.SE_LOGPROBS]
    seats[here + sc.SE_OUT_LOGPROBS] = pairs
    if pairs != 0:
        step, places = state.core[sc.K_COLLECTED_STEP], state.config[sc.G_SEATS]
        seats[here + sc.SE_OUT_RECORD] = record_at(step, places, seat)
        to = seats[here + sc.SE_LOGPROBS_START] + 2 * pairs * (generated - 1)
        seats[here + sc.SE_OUT_RECORD_TO] = to
    seats[here + sc.SE_OUT_W0] = pack_ctl(
        seats[here + sc.SE_INCARNATION], generated, R_NONE, DECODE_PROCESSING
    )


@uncounted
def _reason_to_finish(state, here, token, generated):
    seats = state.seats
    if generated >= seats[here + sc.SE_MIN_TOKENS]:
        if seats[here + sc.SE_IGNORE_EOS] == 0:
            for i in range(state.config[sc.G_EOS_COUNT]):
                if token == state.eos[i]:
                    return R_STOP
        for i in range(seats[here + sc.SE_STOP_COUNT]):
            if token == seats[here + sc.SE_STOP_0 + i]:
                return R_STOP
    if generated >= seats[here + sc.SE_MAX_TOKENS]:
        return R_LENGTH
    return R_NONE


@uncounted
def end_seat(state, seat, reason):
    """Mark a seat's request as ended, to be published as COMPLETED. Lane 0, once its step is noted."""
    state.seats[seat * sc.SEAT_WORDS + sc.SE_REASON] = reason
    note_end(state, seat * sc.SEAT_WORDS, reason)
    fetch_add(state.core, sc.K_ENDED, 1)


@uncounted
def note_end(state, here, reason):
    """Note the end of the request whose seat's record is `here`."""
    seats = state.seats
    if seats[here + sc.SE_OUT_SLOT] == sc.NO_SLOT:
        seats[here + sc.SE_OUT_SLOT] = seats[here + sc.SE_SLOT]
        seats[here + sc.SE_OUT_TOKEN] = NO_TOKEN
        seats[here + sc.SE_OUT_FRONT_END] = seats[here + sc.SE_FRONT_END]
    seats[here + sc.SE_OUT_W0] = pack_ctl(
        seats[here + sc.SE_INCARNATION], seats[here + sc.SE_GENERATED], reason, DECODE_COMPLETED
    )
