"""Decode steps launched ahead: how one is handed what it needs by the one before.

A scheduler that runs ahead launches decode step N+1 on the stream behind N, before it has seen
N's tokens. So each decode step ends by making the step buffer that of its successor: the same rows,
each seat's token and position moved on by one, ``TICKET`` the next number. Whoever launches the
same graph again need write nothing, and whoever goes on otherwise writes what differs, once
nothing is in flight. What a scheduler finds late, when N+1 may be over too, has two halves that steps
use in turn: ``LATE_TOKEN``, ``LATE_FAULT``, and `record_at` of the log-probabilities.

The rules that the scheduler keeps (`scheduler.ahead`): at most one step is ahead, so a half is not
written before it was read; while a step is in flight it writes no input of that step, except block
table entries beyond the seat's position.
"""

from __future__ import annotations

from graphs.step_io import DONE, LATE_FAULT, TICKET, late_at
from ring.atomics import store_release
from ring.jit import njit


@njit
def hand_on(ticket, rows, batch, position, token, next_token, next_position, late_token, lane, lanes):
    """Make a decode step's tokens the next step's inputs; each lane its rows.

    Parameters
    ----------
    ticket : int
        Number of the step that ends.
    rows, batch
        Its ``decode_rows`` and how many of them its graph has.
    position, token : int64[seats]
        Its ``seat_position`` and ``out_token``.
    next_token, next_position : int64[seats]
        ``seat_token`` and ``seat_position`` where the next step finds them.
    late_token : int64[2 * seats]
        Where the scheduler looks.
    """
    seats = next_token.shape[0]
    for row in range(lane, batch, lanes):
        seat = rows[row]
        if seat >= 0:
            sampled = token[seat]
            late_token[late_at(ticket, seats, seat)] = sampled
            next_token[seat] = sampled
            next_position[seat] = position[seat] + 1


@njit
def release_ahead(control, ticket, fault):
    """End a decode step: its fault, the next step's ``TICKET``, then DONE. One lane, after all handed on.

    Nothing of the step is written after DONE: the scheduler may change its inputs from there on.
    """
    control[LATE_FAULT + (ticket & 1)] = fault
    control[TICKET] = ticket + 1
    store_release(control, DONE, ticket)  # pairs with the scheduler's acquire
