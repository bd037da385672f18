"""The event loop: the real `scheduler.turn.turn` between arrivals and the ends of steps.

Only what a device and a network would do is made up: a step ends when the step-time model
says so, with the same token for everyone; a request is submitted at its arrival. A turn is
run at each of these events, since between them the real scheduler's turns change nothing.
"""

from __future__ import annotations

from graphs.grid import EXECS, table_view
from graphs.launcher import launcher_view, peek, retire
from graphs.step_io import DONE, TICKET, step_view
from ring import layout as at
from ring.atomics import load_relaxed, store_release
from ring.jit import njit, uncounted
from ring.states import DECODE_COMPLETED
from ring.views import ring_view
from ring.words import ctl_reason, ctl_state
from scheduler import state as sc
from scheduler.loops.cpu import close_window
from scheduler.simulator import events as ev
from scheduler.simulator.clock import gap_ns, step_ns
from scheduler.simulator.front_end import release, send_next, submit, think
from scheduler.turn import solo_turn

IDLE_TICK_NS = 1_000_000  # how far the clock moves when a policy admits nobody and nothing runs
MOST_IDLE_TICKS = 10_000  # of these; after ten seconds come longer ones
LONG_TICK_NS = 1_000_000_000
MOST_LONG_TICKS = 3600  # an hour of that
NEVER = sc.NEVER


@njit
def run(
    words,
    narrow,
    state_words,
    step_words,
    table_words,
    launcher_words,
    events,
    times,
    key,
    may_admit,
    prefill_or_decode,
    victim,
):
    """Simulate until all requests are done. Returns `events.OK` or why it ended before.

    Parameters
    ----------
    words, narrow, state_words, step_words, table_words, launcher_words
        As for `scheduler.loops.cpu.run`.
    events : Events
    times : StepTimes
    key, may_admit, prefill_or_decode, victim : callable
        The policy.
    """
    ring = ring_view(words, narrow)
    state = sc.state_view(state_words)
    io = step_view(step_words)
    table = table_view(table_words)
    launcher = launcher_view(launcher_words)
    counts, total = events.counts, events.arrive.shape[0]
    seed, most_steps = events.options[ev.O_SEED], events.options[ev.O_MOST_STEPS]
    idle_ticks, finished, ends_at, executable = 0, state.core[sc.K_FINISHED], NEVER, -1
    while counts[ev.N_DONE] < total:
        arrives_at = _next_arrival(events)
        if ends_at <= arrives_at and ends_at != NEVER:
            now = ends_at
            _end_step(state, io, table, launcher, events, executable, now)
            ends_at = NEVER
        elif arrives_at != NEVER:
            now = max(arrives_at, counts[ev.N_CLOCK])
            submit(ring, events, _take_arrival(events))
            idle_ticks = 0
        else:
            now = counts[ev.N_CLOCK] + (IDLE_TICK_NS if idle_ticks < MOST_IDLE_TICKS else LONG_TICK_NS)
            idle_ticks += 1
            if idle_ticks > MOST_IDLE_TICKS + MOST_LONG_TICKS:
                return ev.STUCK
        counts[ev.N_CLOCK] = now
        verdict = solo_turn(ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim, now)
        while verdict == sc.CLOSE_WINDOW:
            close_window(ring, state, launcher, now)
            verdict = solo_turn(
                ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim, now
            )
        counts[ev.N_TURNS] += 1
        if verdict == sc.FAULTED:
            return ev.SCHEDULER_FAULT
        if state.core[sc.K_BOUNDARY] != 0:
            _look_at_seats(ring, state, events, now)
            if state.core[sc.K_FINISHED] - finished != 0:
                finished = state.core[sc.K_FINISHED]
                if finished != counts[ev.N_DONE]:
                    _look_at_slots(ring, events, now)
        if verdict == sc.STEPPED:
            executable = peek(launcher, counts[ev.N_TAKEN])
            counts[ev.N_TAKEN] += 1
            gap = gap_ns(times, seed, counts[ev.N_STEPS])
            length = step_ns(times, io, table, executable // EXECS)
            ends_at = now + gap + length
            _account(state, io, events, now, gap, length)
            idle_ticks = 0
            if counts[ev.N_STEPS] >= most_steps:
                return ev.OUT_OF_STEPS
    return ev.OK


@uncounted
def _next_arrival(events):
    """When the next request comes that the ring has a slot for; NEVER if it depends on others."""
    counts = events.counts
    if counts[ev.N_FREE_SLOTS] == 0:
        return NEVER
    if events.options[ev.O_USERS] > 0:
        return events.thinking[0] if counts[ev.N_THINKING] > 0 else NEVER
    if counts[ev.N_NEXT] == events.arrive.shape[0]:
        return NEVER
    return events.arrive[counts[ev.N_NEXT]]


@uncounted
def _take_arrival(events):
    if events.options[ev.O_USERS] > 0:
        return send_next(events)
    events.counts[ev.N_NEXT] += 1
    return events.counts[ev.N_NEXT] - 1


@uncounted
def _end_step(state, io, table, launcher, events, executable, now):
    """What the engine does at the end of a step; and what clients see of it."""
    if state.core[sc.K_IN_FLIGHT] == sc.DECODE_STEP:
        bucket_gap, bucket, count = -1, 0, 0
        for row in range(state.core[sc.K_IN_FLIGHT_ROWS]):
            slot = state.seats[io.decode_rows[row] * sc.SEAT_WORDS + sc.SE_SLOT]
            gap = now - events.last_token[slot]
            events.last_token[slot] = now
            if gap != bucket_gap:  # nearly always all rows have the same
                events.gaps[bucket] += count
                bucket_gap, bucket, count = gap, _bucket(events, gap), 0
            count += 1
        events.gaps[bucket] += count
    else:
        for run in range(state.core[sc.K_IN_FLIGHT_ROWS]):
            if io.run_samples[run] != 0:
                here = io.run_seat[run] * sc.SEAT_WORDS
                slot = state.seats[here + sc.SE_SLOT]
                if state.seats[here + sc.SE_GENERATED] == 0:
                    events.first[events.request_of_slot[slot]] = now
                else:
                    events.gaps[_bucket(events, now - events.last_token[slot])] += 1
                events.last_token[slot] = now
    store_release(io.control, DONE, io.control[TICKET])
    retire(launcher, executable)


@uncounted
def _bucket(events, gap):
    """Bucket of a gap; most often the one of the gap before."""
    bucket, edges = events.counts[ev.N_BUCKET], events.edges
    if edges[bucket] <= gap < edges[bucket + 1]:
        return bucket
    low, high = 0, ev.BUCKETS
    while high - low > 1:
        middle = (low + high) // 2
        if edges[middle] <= gap:
            low = middle
        else:
            high = middle
    events.counts[ev.N_BUCKET] = low
    return low


@uncounted
def _look_at_seats(ring, state, events, now):
    """See who left a seat (done, or preempted) and who took one."""
    for seat in range(state.config[sc.G_SEATS]):
        slot, before = state.seats[seat * sc.SEAT_WORDS + sc.SE_SLOT], events.slot_of_seat[seat]
        if slot == before:
            continue
        events.slot_of_seat[seat] = slot
        if before != sc.NO_SLOT:
            word = load_relaxed(ring.ctl, before * at.CTL_WORDS + at.W0)
            if ctl_state(word) == DECODE_COMPLETED:
                _finish(ring, events, before, ctl_reason(word), now)
            else:
                events.preempted[events.request_of_slot[before]] += 1
                events.counts[ev.N_PREEMPTED] += 1
        if slot != sc.NO_SLOT:
            request = events.request_of_slot[slot]
            if events.seated[request] < 0:
                events.seated[request] = now


@uncounted
def _look_at_slots(ring, events, now):
    """Find the requests that ended without ever having been seen on a seat."""
    for slot in range(events.request_of_slot.shape[0]):
        if events.request_of_slot[slot] >= 0:
            word = load_relaxed(ring.ctl, slot * at.CTL_WORDS + at.W0)
            if ctl_state(word) == DECODE_COMPLETED:
                _finish(ring, events, slot, ctl_reason(word), now)


@uncounted
def _finish(ring, events, slot, reason, now):
    request = events.request_of_slot[slot]
    events.done[request] = now
    events.reason[request] = reason
    release(ring, events, slot)
    events.counts[ev.N_DONE] += 1
    if events.options[ev.O_USERS] > 0 and events.counts[ev.N_NEXT] < events.arrive.shape[0]:
        follower = events.counts[ev.N_NEXT]
        events.counts[ev.N_NEXT] += 1
        events.arrive[follower] += now  # it was the time to think
        think(events, events.arrive[follower], follower)


@uncounted
def _account(state, io, events, now, gap, length):
    """Count a step that was launched; note every so many in the series."""
    counts, core = events.counts, state.core
    rows = core[sc.K_IN_FLIGHT_ROWS]
    counts[ev.N_STEPS] += 1
    counts[ev.N_BUSY_NS] += length
    counts[ev.N_GAP_NS] += gap
    if core[sc.K_IN_FLIGHT] == sc.DECODE_STEP:
        counts[ev.N_DECODES] += 1
        counts[ev.N_ROWS_NS] += rows * length
    else:
        counts[ev.N_PREFILLS] += 1
        counts[ev.N_PREFILL_NS] += length
    every = events.options[ev.O_EVERY]
    if every == 0 or counts[ev.N_STEPS] % every != 0:
        return
    here = counts[ev.N_SERIES] * ev.SERIES_WORDS
    if here + ev.SERIES_WORDS > events.series.shape[0]:
        return
    counts[ev.N_SERIES] += 1
    decode = core[sc.K_IN_FLIGHT] == sc.DECODE_STEP
    events.series[here] = now
    events.series[here + 1] = core[sc.K_IN_FLIGHT]
    events.series[here + 2] = rows
    events.series[here + 3] = rows if decode else io.run_start[rows]
    events.series[here + 4] = core[sc.K_WAITING]
    events.series[here + 5] = core[sc.K_BLOCKS_FREE]
