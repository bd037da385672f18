"""After a step: each lane takes its seats' tokens, decides whether they end, prepares the next input.

Nothing is written to the ring here: the next graph is launched first, and `publish` runs
beside it. What is to be published waits in the seat's ``OUT`` words.
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
    """Take the results of the step that just completed, if there was one."""
    kind = state.core[sc.K_IN_FLIGHT]
    rows = state.core[sc.K_IN_FLIGHT_ROWS]
    fault = load_relaxed(io.control, FAULT)
    if lane == 0:
        state.core[sc.K_FAULT] = fault
    if kind == sc.DECODE_STEP:
        for row in range(lane, rows, lanes):
            seat = state.rows[row]
            state.seats[seat * sc.SEAT_WORDS + sc.SE_COMPUTED] += 1
            _collect_token(state, io, seat, fault)
    elif kind == sc.PREFILL_STEP:
        for run in range(lane, rows, lanes):
            seat = io.run_seat[run]
            state.seats[seat * sc.SEAT_WORDS + sc.SE_COMPUTED] += io.run_start[run + 1] - io.run_start[run]
            if fault != 0:
                end_seat(state, seat, R_ERROR)
            elif io.run_samples[run] != 0:
                _collect_token(state, io, seat, fault)


@uncounted
def _collect_token(state, io, seat, fault):
    # ordered by the acquire of DONE and the barrier after it; loaded beside the fault word, not after it
    token = load_relaxed(io.out_token, seat)
    if fault != 0:
        end_seat(state, seat, R_ERROR)
        return
    seats, here = state.seats, seat * sc.SEAT_WORDS
    index = seats[here + sc.SE_GENERATED]
    seats[here + sc.SE_GENERATED] = index + 1
    seats[here + sc.SE_STATE] = DECODE_PROCESSING
    seats[here + sc.SE_OUT_TOKEN] = token
    seats[here + sc.SE_OUT_INDEX] = seats[here + sc.SE_OUTPUT_START] + index
    seats[here + sc.SE_OUT_SLOT] = seats[here + sc.SE_SLOT]
    seats[here + sc.SE_OUT_FRONT_END] = seats[here + sc.SE_FRONT_END]
    pairs = seats[here + sc.SE_LOGPROBS]
    seats[here + sc.SE_OUT_LOGPROBS] = pairs
    if pairs != 0:
        seats[here + sc.SE_OUT_RECORD] = record_at(state.core[sc.K_STEP], state.config[sc.G_SEATS], seat)
        seats[here + sc.SE_OUT_RECORD_TO] = seats[here + sc.SE_LOGPROBS_START] + 2 * pairs * index
    reason = _reason_to_finish(state, here, token, index + 1)
    if reason != R_NONE:
        end_seat(state, seat, reason)
        return
    seats[here + sc.SE_OUT_W0] = pack_ctl(
        seats[here + sc.SE_INCARNATION], index + 1, R_NONE, DECODE_PROCESSING
    )
    io.seat_token[seat] = token
    io.seat_position[seat] = seats[here + sc.SE_COMPUTED]
    io.sampling[seat * SAMPLING_WORDS + SUPPRESS_EOS] = 1 if index + 1 < seats[here + sc.SE_MIN_TOKENS] else 0
    if state.policy[sc.P_ACCOUNTING] != 0:
        owner = state.slots[seats[here + sc.SE_SLOT] * sc.SLOT_WORDS + sc.SL_TENANT] % sc.TENANTS
        fetch_add(state.policy, sc.P_ACCOUNTS + owner, 1)
    extend(state, io, seat)


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
    """Mark a seat's request as ended, to be published as COMPLETED; any lane, for its own seat."""
    seats, here = state.seats, seat * sc.SEAT_WORDS
    if seats[here + sc.SE_OUT_SLOT] == sc.NO_SLOT:
        seats[here + sc.SE_OUT_SLOT] = seats[here + sc.SE_SLOT]
        seats[here + sc.SE_OUT_TOKEN] = NO_TOKEN
        seats[here + sc.SE_OUT_FRONT_END] = seats[here + sc.SE_FRONT_END]
    seats[here + sc.SE_OUT_W0] = pack_ctl(
        seats[here + sc.SE_INCARNATION], seats[here + sc.SE_GENERATED], reason, DECODE_COMPLETED
    )
    seats[here + sc.SE_REASON] = reason
    fetch_add(state.core, sc.K_ENDED, 1)
