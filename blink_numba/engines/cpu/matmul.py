"""Matrix products: one panel of weights times a packed tile of rows.

Rows are packed in tiles of `R`: per input the tile's R values side by side, so that a step of
the inner loop reads them from one address. `R` is one of `TILE_ROWS`; a tile's spare rows are
computed and never stored. `multiply_panel` and `expand_panel` are compiled on their own (`kernels`).
"""

from __future__ import annotations

from blink_numba.engines.cpu.formats import BF16, BLOCK, F32, PANEL, Q8
from blink_numba.engines.cpu.simd import (
    fma,
    fma_tile,
    load,
    load_bfloat16,
    load_int8,
    load_nibbles,
    multiply,
    prefetch,
    store,
    store_tile,
    zero_tile,
)
from ring.jit import uncounted

TILE_ROWS = (1, 4, 8, 12)
MAX_TILE_ROWS = 12  # 24 accumulators and the weights fill the 32 registers of AVX-512
# Bytes that weights are fetched ahead: a panel is too short for the hardware to find its pace.
_AHEAD = 6144


@uncounted
def tile_rows(rows):
    """Height of the tiles that `rows` rows are packed in."""
    if rows <= 1:
        return 1
    if rows <= 4:
        return 4
    if rows <= 8:
        return 8
    spare_of_8 = -rows % 8
    spare_of_12 = -rows % 12
    return 8 if spare_of_8 < spare_of_12 else 12


@uncounted
def _tile_f32(tile, rows, panels, at, inputs, x, x_at):
    for _ in range(inputs):
        prefetch(panels, at + _AHEAD)
        prefetch(panels, at + _AHEAD + 64)
        tile = fma_tile(tile, load(panels, at), load(panels, at + 64), x, x_at)
        at += 128
        x_at += rows
    return tile


@uncounted
def _tile_bf16(tile, rows, panels, at, inputs, x, x_at):
    for _ in range(inputs):
        prefetch(panels, at + _AHEAD)
        tile = fma_tile(tile, load_bfloat16(panels, at), load_bfloat16(panels, at + 32), x, x_at)
        at += 64
        x_at += rows
    return tile


@uncounted
def _tile_q8(tile, rows, panels, at, inputs, x, x_at):
    for _ in range(inputs // BLOCK):
        left_scale, right_scale = load(panels, at), load(panels, at + 64)
        for line in range(0, PANEL * 4 + BLOCK * PANEL, 64):
            prefetch(panels, at + _AHEAD + line)
        at += 128
        for _ in range(BLOCK):
            left = multiply(load_int8(panels, at), left_scale)
            right = multiply(load_int8(panels, at + 16), right_scale)
            tile = fma_tile(tile, left, right, x, x_at)
            at += 32
            x_at += rows
    return tile


@uncounted
def _tile_q4(tile, rows, panels, at, inputs, x, x_at):
    for _ in range(inputs // BLOCK):
        left_scale, right_scale = load(panels, at), load(panels, at + 64)
        left_minimum, right_minimum = load(panels, at + 128), load(panels, at + 192)
        for line in range(0, PANEL * 8 + BLOCK * PANEL // 2, 64):
            prefetch(panels, at + _AHEAD + line)
        at += 256
        for _ in range(BLOCK):
            left, right = load_nibbles(panels, at)
            left, right = fma(left, left_scale, left_minimum), fma(right, right_scale, right_minimum)
            tile = fma_tile(tile, left, right, x, x_at)
            at += 16
            x_at += rows
    return tile


@uncounted
def _tile(tile, rows, kind, panels, at, inputs, x, x_at, out):
    if kind == F32:
        store_tile(out, 0, _tile_f32(tile, rows, panels, at, inputs, x, x_at))
    elif kind == BF16:
        store_tile(out, 0, _tile_bf16(tile, rows, panels, at, inputs, x, x_at))
    elif kind == Q8:
        store_tile(out, 0, _tile_q8(tile, rows, panels, at, inputs, x, x_at))
    else:
        store_tile(out, 0, _tile_q4(tile, rows, panels, at, inputs, x, x_at))


def multiply_panel(rows, kind, panels, at, inputs, x, x_at, out):
    """One panel times one tile.

    Parameters
    ----------
    rows : int64
        Height of the tile, one of `TILE_ROWS`.
    kind : int64
        Format of the panel.
    panels : uint8 array
    at : int64
        Where the panel starts.
    inputs : int64
    x : float32 array
        Packed tiles; this one starts at `x_at`.
    out : float32[rows * 32]
        Receives the products, 32 outputs a row.
    """
    if rows == 1:
        _tile(zero_tile(1), 1, kind, panels, at, inputs, x, x_at, out)
    elif rows == 4:
        _tile(zero_tile(4), 4, kind, panels, at, inputs, x, x_at, out)
    elif rows == 8:
        _tile(zero_tile(8), 8, kind, panels, at, inputs, x, x_at, out)
    else:
        _tile(zero_tile(12), 12, kind, panels, at, inputs, x, x_at, out)


def expand_panel(kind, panels, at, inputs, out):
    """A panel as format F32, in the uint8 array `out`: the very values the tiles compute with.

    Worth it as soon as more than one tile uses the panel.
    """
    to = 0
    if kind == BF16:
        for _ in range(inputs):
            store(out, to, load_bfloat16(panels, at))
            store(out, to + 64, load_bfloat16(panels, at + 32))
            at += 64
            to += 128
    elif kind == Q8:
        for _ in range(inputs // BLOCK):
            left_scale, right_scale = load(panels, at), load(panels, at + 64)
            at += 128
            for _ in range(BLOCK):
                store(out, to, multiply(load_int8(panels, at), left_scale))
                store(out, to + 64, multiply(load_int8(panels, at + 16), right_scale))
                at += 32
                to += 128
    else:
        for _ in range(inputs // BLOCK):
            left_scale, right_scale = load(panels, at), load(panels, at + 64)
            left_minimum, right_minimum = load(panels, at + 128), load(panels, at + 192)
            at += 256
            for _ in range(BLOCK):
                left, right = load_nibbles(panels, at)
                store(out, to, fma(left, left_scale, left_minimum))
                store(out, to + 64, fma(right, right_scale, right_minimum))
                at += 16
                to += 128
