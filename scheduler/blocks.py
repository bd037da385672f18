"""KV blocks: a stack of free ones and a table a seat, managed by the scheduler itself."""

from __future__ import annotations

from ring.atomics import fetch_add
from ring.jit import uncounted
from scheduler import state as sc


@uncounted
def blocks_for(state, tokens):
    """Blocks that hold a number of tokens."""
    size = state.config[sc.G_BLOCK_SIZE]
    return (tokens + size - 1) // size


@uncounted
def take_blocks(state, io, seat, count):
    """Give a new occupant its first blocks; the caller saw that enough are free. Lane 0."""
    row = seat * state.config[sc.G_BLOCKS_PER_SEAT]
    free = state.core[sc.K_BLOCKS_FREE]
    for i in range(count):
        io.block_table[row + i] = state.free_blocks[free - 1 - i]
    state.core[sc.K_BLOCKS_FREE] = free - count
    state.seats[seat * sc.SEAT_WORDS + sc.SE_BLOCKS] = count


@uncounted
def free_blocks(state, io, seat):
    """Put all blocks of a seat back. Lane 0. Returns how many."""
    row = seat * state.config[sc.G_BLOCKS_PER_SEAT]
    count = state.seats[seat * sc.SEAT_WORDS + sc.SE_BLOCKS]
    free = state.core[sc.K_BLOCKS_FREE]
    for i in range(count):
        state.free_blocks[free + i] = io.block_table[row + count - 1 - i]
    state.core[sc.K_BLOCKS_FREE] = free + count
    state.seats[seat * sc.SEAT_WORDS + sc.SE_BLOCKS] = 0
    return count


@uncounted
def take_next_block(state, io, seat):
    """Give a seat one block more; the caller saw that one is free. Lane 0."""
    here = seat * sc.SEAT_WORDS
    held = state.seats[here + sc.SE_BLOCKS]
    state.core[sc.K_BLOCKS_FREE] -= 1
    block = state.free_blocks[state.core[sc.K_BLOCKS_FREE]]
    io.block_table[seat * state.config[sc.G_BLOCKS_PER_SEAT] + held] = block
    state.seats[here + sc.SE_BLOCKS] = held + 1


@uncounted
def extend(state, io, seat):
    """See that the seat's next token has a block; any lane, for its own seat.

    Lanes only pop here, so the counter alone arbitrates; a lane that popped below the bottom
    puts its claim back and the seat is starved, which lane 0 resolves at the boundary.
    """
    here = seat * sc.SEAT_WORDS
    held = state.seats[here + sc.SE_BLOCKS]
    if state.seats[here + sc.SE_COMPUTED] < held * state.config[sc.G_BLOCK_SIZE]:
        return
    free = fetch_add(state.core, sc.K_BLOCKS_FREE, -1)
    if free > 0:
        io.block_table[seat * state.config[sc.G_BLOCKS_PER_SEAT] + held] = state.free_blocks[free - 1]
        state.seats[here + sc.SE_BLOCKS] = held + 1
        return
    fetch_add(state.core, sc.K_BLOCKS_FREE, 1)
    state.seats[here + sc.SE_STARVED] = 1
    fetch_add(state.core, sc.K_STARVED, 1)
