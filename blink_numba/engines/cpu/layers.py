"""What happens to single rows between the matrix products: embedding, norm, rotation, gate."""

from __future__ import annotations

import math

import numpy as np

from blink_numba.engines.cpu.formats import BF16, BLOCK, F32, PANEL, Q8
from blink_numba.engines.cpu.simd import add, divide, exp, fma, load, multiply, splat, store, sum_lanes
from blink_numba.engines.cpu.weights import FORMAT, INPUTS, MATRIX_WORDS, OFFSET, PANEL_BYTES
from ring.jit import uncounted

LANES = 16


@uncounted
def embed(network, matrix, token, out, at, scratch):
    """Row `token` of a packed matrix, dequantized into ``out[at:]``.

    `scratch` (uint8) receives the float32 panel the token's row is a column of.
    """
    words = network.matrices[matrix * MATRIX_WORDS : (matrix + 1) * MATRIX_WORDS]
    inputs, kind = words[INPUTS], words[FORMAT]
    panel = words[OFFSET] + (token // PANEL) * words[PANEL_BYTES]
    lane = token % PANEL
    panels = network.panels
    if kind == F32:
        values = panels[panel : panel + words[PANEL_BYTES]].view(np.float32)
        for k in range(inputs):
            out[at + k] = values[k * PANEL + lane]
    elif kind == BF16:
        halves = panels[panel : panel + words[PANEL_BYTES]].view(np.uint16)
        bits = scratch[: 4 * inputs].view(np.uint32)
        for k in range(inputs):
            bits[k] = np.uint32(halves[k * PANEL + lane]) << np.uint32(16)
        values = scratch[: 4 * inputs].view(np.float32)
        for k in range(inputs):
            out[at + k] = values[k]
    else:
        _embed_blocks(panels[panel : panel + words[PANEL_BYTES]], kind, inputs // BLOCK, lane, out, at)


@uncounted
def _embed_blocks(panel, kind, blocks, lane, out, at):
    size = panel.shape[0] // blocks
    for block in range(blocks):
        record = panel[block * size : (block + 1) * size]
        scale = record[4 * lane : 4 * lane + 4].view(np.float32)[0]
        if kind == Q8:
            codes = record[PANEL * 4 :].view(np.int8)
            for k in range(BLOCK):
                out[at + block * BLOCK + k] = np.float32(codes[k * PANEL + lane]) * scale
        else:
            start = PANEL * 4 + 4 * lane
            minimum = record[start : start + 4].view(np.float32)[0]
            codes = record[PANEL * 8 :]
            half, shift = PANEL // 2, 4 * (lane // (PANEL // 2))
            for k in range(BLOCK):
                code = (codes[k * half + lane % half] >> shift) & 15
                # one rounding, as in the tiles: the product of 4 and 11 bits is exact in float64
                out[at + block * BLOCK + k] = np.float32(np.float64(code) * scale + np.float64(minimum))


@uncounted
def inverse_rms(x, at, count, eps):
    """1 / sqrt(mean of squares + eps) of ``x[at : at + count]``, count a multiple of 16 or not."""
    whole = count - count % LANES
    squares = splat(np.float32(0.0))
    for k in range(0, whole, LANES):
        value = load(x, at + k)
        squares = fma(value, value, squares)
    total = sum_lanes(squares)
    for k in range(whole, count):
        total += x[at + k] * x[at + k]
    return np.float32(1.0) / np.float32(math.sqrt(total / np.float32(count) + np.float32(eps)))


@uncounted
def norm_into_tile(x, at, count, eps, weight, weight_at, tile, tile_at, rows):
    """RMS norm of a row, written as one row of a packed tile (every `rows`-th element)."""
    scale = inverse_rms(x, at, count, eps)
    for k in range(count):
        tile[tile_at + k * rows] = x[at + k] * scale * weight[weight_at + k]


@uncounted
def norm_head(x, at, head_dim, eps, weight, weight_at):
    """RMS norm of one head in place (Qwen 3)."""
    scale = splat(inverse_rms(x, at, head_dim, eps))
    for k in range(0, head_dim, LANES):
        store(x, at + k, multiply(multiply(load(x, at + k), scale), load(weight, weight_at + k)))


@uncounted
def rotate_head(x, at, head_dim, cosines, sines, position, factor):
    """Rotary position of one head in place, times `factor`; dimension i pairs with i + head_dim/2."""
    half = head_dim // 2
    table = position * half
    for k in range(half):
        cosine, sine = cosines[table + k], sines[table + k]
        first, second = x[at + k], x[at + half + k]
        x[at + k] = (first * cosine - second * sine) * factor
        x[at + half + k] = (second * cosine + first * sine) * factor


@uncounted
def gate(gates, ups, at):
    """``silu(gate) * up`` of sixteen values, into `gates`."""
    value = load(gates, at)
    one = splat(np.float32(1.0))
    negated = multiply(value, splat(np.float32(-1.0)))
    gated = divide(value, add(one, exp(negated)))
    store(gates, at, multiply(gated, load(ups, at)))
