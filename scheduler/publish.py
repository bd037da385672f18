"""Publishing a step: tokens, log, control words, counters. Runs beside the next graph."""

from __future__ import annotations

from ring import layout as at
from ring.atomics import fetch_add, store_relaxed, store_release
from ring.jit import uncounted
from ring.logprobs import write_pairs
from ring.states import R_NONE
from ring.words import ctl_incarnation, pack_ctl, pack_log
from scheduler import state as sc


@uncounted
def publish_tokens(ring, state, io, lane, lanes):
    """Write the tokens of a step into extents and logs; nobody is told yet. All lanes."""
    entries = _log_entries(ring)
    for seat in range(lane, state.config[sc.G_SEATS], lanes):
        here = seat * sc.SEAT_WORDS
        if state.seats[here + sc.SE_OUT_SLOT] != sc.NO_SLOT and state.seats[here + sc.SE_OUT_TOKEN] >= 0:
            _publish_token(ring, state, io, here, entries, lanes)


@uncounted
def publish(ring, state, lane, lanes):
    """Release the control words of all seats. All lanes, after `publish_logs` and a barrier.

    The log's head goes before the control words that count its entries: a reader that finds
    fewer entries than a count it saw a poll ago knows that it lost some.
    """
    seats = state.seats
    for seat in range(lane, state.config[sc.G_SEATS], lanes):
        here = seat * sc.SEAT_WORDS
        _publish_outcome(ring, state, here)
        slot = seats[here + sc.SE_SLOT]
        if slot != sc.NO_SLOT:
            word = pack_ctl(
                seats[here + sc.SE_INCARNATION],
                seats[here + sc.SE_GENERATED],
                R_NONE,
                seats[here + sc.SE_STATE],
            )
            if word != seats[here + sc.SE_W0]:
                seats[here + sc.SE_W0] = word
                store_release(ring.ctl, slot * at.CTL_WORDS + at.W0, word)


@uncounted
def publish_seat(ring, state, io, seat):
    """Write at once what happened on a seat. Lane 0, while the others wait."""
    here = seat * sc.SEAT_WORDS
    if state.seats[here + sc.SE_OUT_SLOT] != sc.NO_SLOT and state.seats[here + sc.SE_OUT_TOKEN] >= 0:
        _publish_token(ring, state, io, here, _log_entries(ring), 1)
        publish_logs(ring, state)
    _publish_outcome(ring, state, here)


@uncounted
def _publish_outcome(ring, state, here):
    seats = state.seats
    slot = seats[here + sc.SE_OUT_SLOT]
    if slot != sc.NO_SLOT:
        word = seats[here + sc.SE_OUT_W0]
        # pairs with the reader's acquire: the tokens that the word counts are there
        store_release(ring.ctl, slot * at.CTL_WORDS + at.W0, word)
        seats[here + sc.SE_OUT_SLOT] = sc.NO_SLOT
        if seats[here + sc.SE_SLOT] == slot:
            seats[here + sc.SE_W0] = word


@uncounted
def _log_entries(ring):
    """Entries of each front end's token log, a power of two."""
    return ring.log.shape[0] // (ring.fe_sched.shape[0] // at.FE_WORDS)


@uncounted
def _publish_token(ring, state, io, here, entries, lanes):
    slot, token = state.seats[here + sc.SE_OUT_SLOT], state.seats[here + sc.SE_OUT_TOKEN]
    incarnation = ctl_incarnation(state.seats[here + sc.SE_OUT_W0])
    state.seats[here + sc.SE_OUT_TOKEN] = -1
    front_end = state.seats[here + sc.SE_OUT_FRONT_END]
    ring.tokens[state.seats[here + sc.SE_OUT_INDEX]] = token
    pairs = state.seats[here + sc.SE_OUT_LOGPROBS]
    if pairs != 0:
        # the graph that runs beside this writes the other half of the records
        record, to = state.seats[here + sc.SE_OUT_RECORD], state.seats[here + sc.SE_OUT_RECORD_TO]
        write_pairs(ring.tokens, to, io.out_logprobs, record, pairs)
    head = front_end * sc.FRONT_END_WORDS + sc.FR_LOG_HEAD
    if lanes == 1:  # nobody to race with
        position = state.front_ends[head]
        state.front_ends[head] = position + 1
    else:
        position = fetch_add(state.front_ends, head, 1)
    # relaxed, not plain: a reader that lags by a whole log may read it meanwhile (and will know)
    place = front_end * entries + (position & (entries - 1))
    store_relaxed(ring.log, place, pack_log(slot, incarnation, token))


@uncounted
def publish_logs(ring, state):
    """Release the heads of the token logs that grew. Lane 0, after all lanes wrote their tokens."""
    for front_end in range(state.front_ends.shape[0] // sc.FRONT_END_WORDS):
        here = front_end * sc.FRONT_END_WORDS
        head = state.front_ends[here + sc.FR_LOG_HEAD]
        grown = head - state.front_ends[here + sc.FR_LOG_PUBLISHED]
        if grown != 0:
            state.core[sc.K_TOKENS] += grown
            state.front_ends[here + sc.FR_LOG_PUBLISHED] = head
            # pairs with the reader's acquire: the entries below the head are there
            store_release(ring.fe_sched, front_end * at.FE_WORDS + at.D_LOG_HEAD, head)


@uncounted
def beat(ring, state):
    """Heartbeat: it moves with every turn of the loop. Lane 0."""
    state.core[sc.K_LOOPS] += 1
    store_relaxed(ring.status, at.S_HEARTBEAT, state.core[sc.K_LOOPS])


@uncounted
def publish_status(ring, state):
    """Counters for observers; relaxed, each right on its own. Lane 0."""
    core, status = state.core, ring.status
    store_relaxed(status, at.S_STEPS, core[sc.K_STEP])
    store_relaxed(status, at.S_LAUNCHES, core[sc.K_LAUNCHES])
    store_relaxed(status, at.S_WINDOWS, core[sc.K_WINDOWS])
    store_relaxed(status, at.S_RETRIES, core[sc.K_RETRIES])
    store_relaxed(status, at.S_PREFILLS, core[sc.K_PREFILLS])
    store_relaxed(status, at.S_DECODES, core[sc.K_DECODES])
    store_relaxed(status, at.S_TOKENS, core[sc.K_TOKENS])
    store_relaxed(status, at.S_WAITING, core[sc.K_WAITING])
    store_relaxed(status, at.S_SEATS_USED, core[sc.K_SEATED])
    store_relaxed(status, at.S_BLOCKS_FREE, core[sc.K_BLOCKS_FREE])
    store_relaxed(status, at.S_FINISHED, core[sc.K_FINISHED])
    store_relaxed(status, at.S_PREEMPTIONS, core[sc.K_PREEMPTIONS])
    store_relaxed(status, at.S_CLAIMS, core[sc.K_CLAIMS])
    store_relaxed(status, at.S_IN_FLIGHT_SINCE, core[sc.K_LAUNCHED_AT] if core[sc.K_IN_FLIGHT] != 0 else 0)
    store_relaxed(status, at.S_ERROR_ARG, core[sc.K_ERROR_ARG])
    store_relaxed(status, at.S_ERROR, core[sc.K_ERROR])
