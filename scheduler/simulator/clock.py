"""How long a step takes on the virtual clock: interpolated from measured tables."""

from __future__ import annotations

from graphs.grid import DECODE
from ring.jit import uncounted


@uncounted
def _place(axis, value):
    """Index of the interval of `axis` to interpolate in; the last one also serves what is beyond."""
    low, high = 0, axis.shape[0] - 1
    while high - low > 1:
        middle = (low + high) // 2
        if axis[middle] <= value:
            low = middle
        else:
            high = middle
    return low


@uncounted
def interpolate(rows, columns, table, row, column):
    """Bilinear interpolation; linear beyond the ends of an axis, never below zero."""
    width = columns.shape[0]
    i, j = _place(rows, row), _place(columns, column)
    u = (row - rows[i]) / (rows[i + 1] - rows[i])
    v = (column - columns[j]) / (columns[j + 1] - columns[j])
    here, below = i * width + j, (i + 1) * width + j
    top = table[here] + v * (table[here + 1] - table[here])
    bottom = table[below] + v * (table[below + 1] - table[below])
    return max(top + u * (bottom - top), 0.0)


@uncounted
def step_ns(times, io, table, graph):
    """Duration of the step that was just launched, from its rows or runs in the step buffer."""
    shape = table.shape[graph]
    if table.kind[graph] == DECODE:
        context = 0
        for row in range(shape):
            seat = io.decode_rows[row]
            if seat >= 0:
                context += io.seat_position[seat] + 1
        return int(interpolate(times.decode_batch, times.decode_context, times.decode, shape, context))
    tokens, depth = 0, 0
    for run in range(io.run_seat.shape[0]):
        if io.run_seat[run] >= 0:
            start, end = io.run_start[run], io.run_start[run + 1]
            tokens += end - start
            depth += (io.prefill_position[start] + io.prefill_position[end - 1]) * (end - start)
    mean = depth / (2 * max(tokens, 1))
    return int(interpolate(times.prefill_tokens, times.prefill_depth, times.prefill, shape, mean))


@uncounted
def mix(seed, number):
    """A pseudo-random 31-bit integer, a function of its arguments alone."""
    x = (seed * 0x9E3779B1 + number * 0x85EBCA77) & 0x7FFFFFFF
    x ^= x >> 15
    x = (x * 0x2C1B3C6D) & 0x7FFFFFFF
    x ^= x >> 12
    x = (x * 0x297A2D39) & 0x7FFFFFFF
    return x ^ (x >> 15)


@uncounted
def gap_ns(times, seed, step):
    """From the end of a step to the start of the next."""
    count = times.gap.shape[0]
    if count == 1:
        return int(times.gap[0])
    return int(times.gap[mix(seed, step) % count])
