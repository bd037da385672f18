"""One step: the rows a step buffer asks for, checked, computed, and released as done."""

from __future__ import annotations

import numpy as np

from blink_numba.engines.cpu.forward import forward
from blink_numba.engines.cpu.team import FAULTS, await_step, begin_step, give_way, is_broken, quit_team
from blink_numba.engines.sampling import FAULT_INPUT
from graphs.grid import DECODE, EXECS, table_view
from graphs.launcher import LAUNCHED, engine_stopped, launch, launcher_view, open_window, peek, retire
from graphs.step_io import DONE, FAULT, TICKET, step_view
from ring.atomics import load_acquire, load_relaxed, now_ns, pause, store_release
from ring.jit import njit, uncounted

FAULT_TEAM = 3  # an engine thread did not come to a barrier within its deadline


@uncounted
def _table_fits(io, seat, position, cache):
    """Whether a seat's block table covers positions up to `position` with blocks of the cache."""
    per_seat = io.block_table.shape[0] // io.seat_token.shape[0]
    last = position // cache.block_size
    if last >= per_seat:
        return False
    for k in range(seat * per_seat, seat * per_seat + last + 1):
        if io.block_table[k] < 0 or io.block_table[k] >= cache.blocks:
            return False
    return True


@uncounted
def _add_row(io, network, cache, acts, rows, token, position, seat, known_seat):
    """Note a row; False if the step asks for something outside the engine's shapes."""
    if seat >= io.seat_token.shape[0] or token < 0 or token >= network.vocab:
        return False
    if position < 0 or position >= network.cosines.shape[0] // (network.head_dim // 2):
        return False
    # within a run the next position needs a look only where it enters a block
    if (seat != known_seat or position % cache.block_size == 0) and not _table_fits(
        io, seat, position, cache
    ):
        return False
    acts.row_token[rows] = token
    acts.row_position[rows] = position
    acts.row_seat[rows] = seat
    return True


@uncounted
def _gather_decode(io, network, cache, acts, batch):
    """Rows of a decode step: (rows, samples), or (-1, 0) for a faulty input."""
    rows = np.int64(0)  # not a literal, for which Numba would compile another `_add_row`
    for k in range(batch):
        seat = io.decode_rows[k]
        if seat < 0:
            continue
        if seat >= io.seat_token.shape[0]:
            return -1, 0
        token, position = io.seat_token[seat], io.seat_position[seat]
        if not _add_row(io, network, cache, acts, rows, token, position, seat, np.int64(-1)):
            return -1, 0
        acts.sample_row[rows] = rows
        acts.sample_seat[rows] = seat
        rows += 1
    return rows, rows


@uncounted
def _gather_prefill(io, network, cache, acts, tokens):
    """Rows of a prefill step: (rows, samples), or (-1, 0) for a faulty input."""
    rows, samples = np.int64(0), 0
    for run in range(io.run_seat.shape[0]):
        seat = io.run_seat[run]
        if seat < 0:
            continue
        start, end = io.run_start[run], io.run_start[run + 1]
        if start < 0 or end > tokens or start >= end:
            return -1, 0
        known_seat = np.int64(-1)
        for k in range(start, end):
            if io.prefill_seat[k] != seat:
                return -1, 0
            token, position = io.prefill_token[k], io.prefill_position[k]
            if not _add_row(io, network, cache, acts, rows, token, position, seat, known_seat):
                return -1, 0
            known_seat = seat
            rows += 1
        if io.run_samples[run] == 1:
            acts.sample_row[samples] = rows - 1
            acts.sample_seat[samples] = seat
            samples += 1
    return rows, samples


@uncounted
def lead_step(io, network, cache, acts, scratch, team, kind, shape):
    """Run a step as the team's leader.

    Parameters
    ----------
    io : graphs.step_io.StepIO
    network, cache, acts, scratch, team
        The engine's memory.
    kind, shape : int64
        Of the graph launched.
    """
    fault = 0
    if kind == DECODE:
        rows, samples = _gather_decode(io, network, cache, acts, shape)
    else:
        rows, samples = _gather_prefill(io, network, cache, acts, shape)
    if rows < 0:
        fault = FAULT_INPUT
    elif rows > 0:
        begin_step(team, rows, samples, 0 if kind == DECODE else 1)
        forward(io, network, cache, acts, scratch, team)
        fault = FAULT_TEAM if is_broken(team) else load_relaxed(team, FAULTS)
    io.control[FAULT] = fault
    store_release(io.control, DONE, io.control[TICKET])  # pairs with the scheduler's acquire


@njit
def follow_steps(io_words, network, cache, acts, scratch, team, seen):
    """Run every step the leader begins after number `seen`, until the team is dismissed."""
    io = step_view(io_words)
    while True:
        seen = await_step(team, seen)
        if seen < 0 or is_broken(team):
            return
        forward(io, network, cache, acts, scratch, team)


@njit
def lead_steps(io_words, table_words, launcher_words, network, cache, acts, scratch, team):
    """Run every step that is launched, until the launcher's stop word is set; then dismiss the team."""
    io, table, launcher = step_view(io_words), table_view(table_words), launcher_view(launcher_words)
    taken, looks = 0, 0
    while not (engine_stopped(launcher) or is_broken(team)):
        executable = peek(launcher, taken)
        if executable < 0:
            give_way(looks)
            looks += 1
            continue
        graph = executable // EXECS
        lead_step(io, network, cache, acts, scratch, team, table.kind[graph], table.shape[graph])
        retire(launcher, executable)
        taken += 1
        looks = 0
    quit_team(team)


@njit
def launch_and_wait(io_words, table_words, launcher_words, executable, deadline_ns):
    """What a scheduler does for one step, in a window of its own; False if it is not done in time."""
    launcher, control = launcher_view(launcher_words), step_view(io_words).control
    start, looks = now_ns(), 0
    open_window(launcher)
    # an executable may still be running for the moment between its DONE and its retirement
    while launch(launcher, table_view(table_words), executable) != LAUNCHED:
        if now_ns() - start > deadline_ns:
            return False
        pause(0)
    while load_acquire(control, DONE) != control[TICKET]:  # pairs with the release in lead_step
        if now_ns() - start > deadline_ns:
            return False
        give_way(looks)
        looks += 1
    return True
