"""One turn of the scheduler, the same source on every target.

In the paper's order: scan the ring beside the running graph; when the graph is done take
its tokens, free what ended, admit by policy, choose and launch the next graph; then publish
beside it. Where nothing changes, as at most steps, the next graph is launched at once. Only
the loops around `turn` differ (`scheduler.loops`): a CUDA kernel of 256 lanes, a thread
without the GIL, the model checker's greenlets, the simulator.
"""

from __future__ import annotations

from graphs.launcher import runs_ahead
from graphs.step_io import DONE
from ring import layout as at
from ring.atomics import lane_barrier, load_acquire_device
from ring.jit import njit, uncounted
from ring.recorder import E_FAULT, E_STOP, record
from scheduler import state as sc
from scheduler.admit import admit, feed_starved, judge, may_displace, may_try
from scheduler.ahead import collect_late, follow, go_ahead, note_late
from scheduler.choose import choose, foresee, goes_on, launch_planned, plan_again, stage_prefill
from scheduler.claim import scan, search_orphans, take_tickets
from scheduler.collect import collect, note
from scheduler.ending import end_doomed_waiting, finish_draining, watch, watch_others
from scheduler.publish import beat, publish, publish_logs, publish_status, publish_tokens
from scheduler.seats import reap
from scheduler.swap import swap


@uncounted
def turn(ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim, lane, lanes, now):
    """Run one turn as lane `lane` of `lanes`.

    Parameters
    ----------
    ring : ring.views.RingView
    state : scheduler.state.SchedulerState
    io : graphs.step_io.StepIO
    table : graphs.grid.GraphTable
    launcher : graphs.launcher.Launcher
    key, may_admit, prefill_or_decode, victim : callable
        The policy (`scheduler.policy`).
    now : int
        Nanoseconds on the scheduler's clock.

    Returns
    -------
    int
        A verdict (`scheduler.state`), the same for all lanes: BUSY, IDLE, STEPPED,
        CLOSE_WINDOW (nothing is in flight; open a window and go on), STOPPED, FAULTED, PARKED
        (nothing is in flight, as the host asked; run again when it is done).
    """
    core = state.core
    scan(ring, state, lane, lanes)
    watch(ring, state, lane, lanes, now)
    lane_barrier()
    if lane == 0:
        watch_others(state, lanes)
        search_orphans(ring, state)
        take_tickets(ring, state, now)
        core[sc.K_NOW] = now
        core[sc.K_DISPLACES] = 0
        core[sc.K_JUDGING] = 1 if core[sc.K_IN_FLIGHT] == sc.DECODE_STEP and may_displace(state) else 0
    lane_barrier()
    judge(state, key, victim, lane, lanes)
    if lane == 0:
        foresee(state)
        core[sc.K_BOUNDARY] = 1 if _at_boundary(ring, state, io, launcher, now) else 0
        beat(ring, state)
    lane_barrier()
    if core[sc.K_BOUNDARY] == 0:
        return core[sc.K_VERDICT]

    if runs_ahead(launcher):
        collect_late(ring, state, io)
    else:
        collect(ring, state, io, lane, lanes)
    lane_barrier()
    if lane == 0:
        core[sc.K_COLLECTED] = core[sc.K_IN_FLIGHT]
        core[sc.K_COLLECTED_STEP] = core[sc.K_STEP]
        core[sc.K_COLLECTED_ROWS] = core[sc.K_IN_FLIGHT_ROWS]
        core[sc.K_GOES_ON] = 1 if goes_on(state) else 0
        if runs_ahead(launcher) and core[sc.K_AHEAD] != 0:
            follow(ring, state, now)
        elif core[sc.K_GOES_ON] != 0:
            plan_again(state)
            launch_planned(ring, state, io, table, launcher, now)
    lane_barrier()
    if runs_ahead(launcher):
        note_late(state, io)
    else:
        note(state, io, core[sc.K_COLLECTED], lane, lanes)
    lane_barrier()
    if core[sc.K_GOES_ON] == 0:
        _change_batch(
            ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim, lane, lanes, now
        )
    publish_tokens(ring, state, io, lane, lanes)
    lane_barrier()
    if lane == 0:
        publish_logs(ring, state)
    lane_barrier()
    publish(ring, state, lane, lanes)
    lane_barrier()
    if lane == 0:
        if runs_ahead(launcher):
            go_ahead(ring, state, io, table, launcher, now)
        if core[sc.K_DYING] != 0:
            finish_draining(ring, state, now)
        _check_stop(ring, state, now)
        publish_status(ring, state)
    lane_barrier()
    return core[sc.K_VERDICT]


@uncounted
def _change_batch(
    ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim, lane, lanes, now
):
    """The rest of a boundary at which something changes: who leaves, who comes, what runs next."""
    core = state.core
    if lane == 0:
        _close_step(ring, state, io, now)
        if core[sc.K_DOOMED] != 0:
            end_doomed_waiting(ring, state, now)
        reap(ring, state, io, now)
        feed_starved(ring, state, io, victim, now)
        swap(ring, state, now)
        core[sc.K_ADMITTING] = 1 if core[sc.K_PARK] == 0 and (may_try(state) or may_displace(state)) else 0
    lane_barrier()
    admit(ring, state, io, key, may_admit, victim, lane, lanes, now)
    if lane == 0:
        choose(state, io, table, prefill_or_decode)
    lane_barrier()
    if core[sc.K_PLAN] == sc.PREFILL_STEP:
        stage_prefill(ring, state, io, table, lane, lanes)
        lane_barrier()
    if lane == 0 and core[sc.K_PLAN] != sc.NOTHING:
        launch_planned(ring, state, io, table, launcher, now)


@njit(_nrt=False)  # not inlined: compiled once for every loop of one lane
def solo_turn(ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim, now):
    """`turn` of the only lane."""
    return turn(ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim, 0, 1, now)


@uncounted
def _at_boundary(ring, state, io, launcher, now):
    """Whether no step is in flight, or the one that was is done. Lane 0."""
    core = state.core
    core[sc.K_VERDICT] = sc.BUSY
    if core[sc.K_IN_FLIGHT] == sc.NOTHING:
        return True
    for _ in range(state.config[sc.G_POLL_SPINS] + 1):
        # pairs with the engine's release of DONE: the step's outputs are there
        done = load_acquire_device(io.control, DONE)
        if done == core[sc.K_STEP]:
            return True
        if runs_ahead(launcher) and done == core[sc.K_STEP] + core[sc.K_AHEAD]:
            return True  # the step behind is over, too
    if now - core[sc.K_LAUNCHED_AT] > state.config[sc.G_STEP_DEADLINE_NS]:
        core[sc.K_ERROR] = sc.ERROR_STEP_DEADLINE
        core[sc.K_ERROR_ARG] = core[sc.K_STEP]
        core[sc.K_VERDICT] = sc.FAULTED
        record(ring.flight, core[sc.K_RECORDS], now, E_FAULT, sc.ERROR_STEP_DEADLINE, core[sc.K_STEP], 0, 0)
        core[sc.K_RECORDS] += 1
        publish_status(ring, state)
    return False


@uncounted
def _close_step(ring, state, io, now):
    """Lane 0, after all lanes collected: nothing is in flight any more."""
    core = state.core
    kind = core[sc.K_IN_FLIGHT]
    if kind == sc.NOTHING:
        return
    core[sc.K_IN_FLIGHT] = sc.NOTHING
    if kind == sc.PREFILL_STEP:
        core[sc.K_ROWS_STALE] = 1  # those who prefilled decode now, those who paused resume
    fault = core[sc.K_FAULT]
    if fault != 0:
        record(ring.flight, core[sc.K_RECORDS], now, E_FAULT, sc.ERROR_ENGINE, fault, core[sc.K_STEP], 0)
        core[sc.K_RECORDS] += 1


@uncounted
def _check_stop(ring, state, now):
    core = state.core
    if core[sc.K_STOP] == at.RUN or core[sc.K_VERDICT] == sc.FAULTED:
        return
    if core[sc.K_SEATED] == 0 and core[sc.K_WAITING] == 0 and core[sc.K_IN_FLIGHT] == sc.NOTHING:
        core[sc.K_VERDICT] = sc.STOPPED
        record(ring.flight, core[sc.K_RECORDS], now, E_STOP, core[sc.K_STOP], 0, 0, 0)
        core[sc.K_RECORDS] += 1
