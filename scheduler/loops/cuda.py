"""The scheduler's loops on the GPU: one block of 256 lanes over the same `turn`.

A loop is a kernel made for a policy and a launch strategy. It ends when the strategy says so
(a window is used up, the step runs after it) and goes on as its own successor, on the same
state; the host sees none of that. It ends for good on a stop, a fault, or to park.

Fire-and-forget lives for 120 steps and has the state's hot sections in shared memory meanwhile.
The other strategies end with every step, and work where the state is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from graphs._cuda import cuda, types
from graphs.device_launch import set_conditional, tail_launch_self
from graphs.grid import EXECS, table_view, with_handles
from graphs.step_io import step_view
from graphs.strategies import L_LOOP, L_SWITCH, L_WINDOW, FireAndForget, TailPair, WhileSwitch
from ring import layout as at
from ring.atomics import lane_barrier, now_ns, pause, store_release
from ring.jit import njit
from ring.recorder import E_FAULT, E_WINDOW, record
from ring.views import ring_view
from scheduler import state as sc
from scheduler.policy import Policy
from scheduler.turn import turn

LANES = 256
int64 = types.int64
NO_BRANCH = 1 << 30  # past the last branch of any switch: none runs


@njit
def _enter_new_window(ring, state, launcher, now):
    """Count a window that ends; the next begins with no launches. Lane 0."""
    core = state.core
    record(ring.flight, core[sc.K_RECORDS], now, E_WINDOW, core[sc.K_WINDOW], 0, 0, 0)
    core[sc.K_RECORDS] += 1
    core[sc.K_WINDOWS] += 1
    core[sc.K_WINDOW] = 0
    launcher.core[L_WINDOW] = 0


@cuda.jit(device=True, forceinline=True)
def _fetch(hot, words, table, lane):
    """Take the state's hot sections, then the graphs' handles, into shared memory.

    What lies elsewhere is fetched anew after each acquire, and from behind a model's weights.
    """
    size = sc.hot_words(words)
    for index in range(lane, size, LANES):
        hot[index] = words[index]
    for index in range(lane, table.handle.shape[0], LANES):
        hot[size + index] = table.handle[index]
    lane_barrier()


@cuda.jit(device=True, forceinline=True)
def _put_back(hot, words, lane):
    """Give the hot sections back: the next instance, or the host, finds a whole state."""
    lane_barrier()
    for index in range(lane, sc.hot_words(words), LANES):
        words[index] = hot[index]
    lane_barrier()


def shared_bytes(state_words: np.ndarray, graphs: int, available: int) -> int:
    """Dynamic shared memory to launch the fire-and-forget scheduler with: all there is.

    So no other block fits its multiprocessor. The small kernels of a step that came to lie
    beside it would share its caches and be the last of their grid to end.

    Parameters
    ----------
    state_words : int64[n]
    graphs : int
        Of the grid.
    available : int
        Bytes that a block may have.

    Raises
    ------
    ValueError
        It is less than the state's hot sections and the graphs' handles need: too many seats.
    """
    needed = 8 * (int(sc.hot_words(state_words)) + EXECS * graphs)
    if needed > available:
        seats = sc.state_view(state_words).config[sc.G_SEATS]
        raise ValueError(
            f"a scheduler of {seats} seats needs {needed} bytes of shared memory, a block here has "
            f"{available}: lower --max-num-seqs"
        )
    return available


@njit
def _leave(ring, verdict):
    """Say why the loop ends for good. Lane 0."""
    phase = at.PHASE_FAULTED
    if verdict == sc.STOPPED:
        phase = at.PHASE_STOPPED
    elif verdict == sc.PARKED:
        phase = at.PHASE_PARKED
    store_release(ring.status, at.S_PHASE, phase)


@njit
def _leave_unlaunchable(ring, state, code, now):
    """The scheduler could not launch itself: a fault that says so. Lane 0."""
    core = state.core
    core[sc.K_ERROR], core[sc.K_ERROR_ARG] = sc.ERROR_LAUNCH, code
    record(ring.flight, core[sc.K_RECORDS], now, E_FAULT, sc.ERROR_LAUNCH, code, 1, 0)
    core[sc.K_RECORDS] += 1
    store_release(ring.status, at.S_ERROR_ARG, code)
    store_release(ring.status, at.S_ERROR, sc.ERROR_LAUNCH)
    _leave(ring, sc.FAULTED)


def make_kernel(policy: Policy, strategy: str) -> Callable:
    """The scheduler kernel of a policy and a launch strategy.

    Parameters
    ----------
    policy : Policy
    strategy : {"faf", "tail", "while"}

    Returns
    -------
    callable
        A CUDA kernel of ``(words, narrow, state, io, table, launcher)``: the ring's words and
        the same memory as int32, then int64 buffers. Launch with one block of `LANES` lanes and, for
        ``faf``, `shared_bytes` of dynamic shared memory.
    """
    return _make(strategy, *policy.functions)


@cache
def _make(strategy: str, *functions: Callable) -> Callable:
    """Once in a process: it takes a quarter of a minute to compile."""
    return _MAKERS[strategy](*functions)


def _make_fire_and_forget(key, may_admit, prefill_or_decode, victim):
    @cuda.jit
    def scheduler_faf(words, narrow, state_words, io_words, table_words, launcher_words):
        lane = cuda.threadIdx.x
        hot = cuda.shared.array(0, int64)
        captured = table_view(table_words)
        _fetch(hot, state_words, captured, lane)
        ring = ring_view(words, narrow)
        state = sc.split_view(hot, state_words)
        io = step_view(io_words)
        table = with_handles(captured, hot[sc.hot_words(state_words) :])
        launcher = FireAndForget(launcher_words)
        spins = 0
        while True:
            now = now_ns()
            verdict = turn(
                ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim, lane, LANES, now
            )
            if verdict == sc.IDLE:
                pause(spins)
                spins += 1
            elif verdict == sc.BUSY or verdict == sc.STEPPED:
                spins = 0
            else:
                break
        if lane == 0 and verdict == sc.CLOSE_WINDOW:
            _enter_new_window(ring, state, launcher, now)
        _put_back(hot, state_words, lane)
        if lane == 0:
            if verdict == sc.CLOSE_WINDOW:
                code = tail_launch_self()
                if code != 0:
                    _leave_unlaunchable(ring, state, code, now)
            else:
                _leave(ring, verdict)

    return scheduler_faf


def _make_tail_pair(key, may_admit, prefill_or_decode, victim):
    @cuda.jit
    def scheduler_tail(words, narrow, state_words, io_words, table_words, launcher_words):
        lane = cuda.threadIdx.x
        ring = ring_view(words, narrow)
        state = sc.state_view(state_words)
        io = step_view(io_words)
        table = table_view(table_words)
        launcher = TailPair(launcher_words)
        spins = 0
        while True:
            now = now_ns()
            verdict = turn(
                ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim, lane, LANES, now
            )
            if verdict == sc.CLOSE_WINDOW:
                if lane == 0:  # tail launches have no window; the count alone begins anew
                    _enter_new_window(ring, state, launcher, now)
                lane_barrier()
            elif verdict == sc.IDLE:
                pause(spins)
                spins += 1
            else:
                break
        if lane == 0:
            if verdict == sc.STEPPED:
                code = tail_launch_self()  # after the step, which was tail-launched before
                if code != 0:
                    _leave_unlaunchable(ring, state, code, now)
            else:
                _leave(ring, verdict)

    return scheduler_tail


def _make_while_switch(key, may_admit, prefill_or_decode, victim):
    @cuda.jit
    def scheduler_while(words, narrow, state_words, io_words, table_words, launcher_words):
        lane = cuda.threadIdx.x
        ring = ring_view(words, narrow)
        state = sc.state_view(state_words)
        io = step_view(io_words)
        table = table_view(table_words)
        launcher = WhileSwitch(launcher_words)
        spins = 0
        while True:
            now = now_ns()
            verdict = turn(
                ring, state, io, table, launcher, key, may_admit, prefill_or_decode, victim, lane, LANES, now
            )
            if verdict == sc.CLOSE_WINDOW:
                if lane == 0:
                    _enter_new_window(ring, state, launcher, now)
                lane_barrier()
            elif verdict == sc.IDLE:
                pause(spins)
                spins += 1
            else:
                break
        if lane == 0:
            go_on = verdict == sc.STEPPED
            set_conditional(launcher.core[L_LOOP], 1 if go_on else 0)
            if not go_on:
                set_conditional(launcher.core[L_SWITCH], NO_BRANCH)
                _leave(ring, verdict)

    return scheduler_while


_MAKERS = {"faf": _make_fire_and_forget, "tail": _make_tail_pair, "while": _make_while_switch}
