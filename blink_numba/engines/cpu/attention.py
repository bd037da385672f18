"""Attention over the paged KV cache.

A block holds, per layer and key/value head, its keys transposed (dimension by dimension,
tokens side by side: the lanes of a score are tokens) and its values token by token (the lanes
of an output are dimensions). Sums run over dimensions and over positions in order, and a
row's result depends on its own query and positions 0 … its own only: decode, whole prefill
and chunks give the same bits.
"""

from __future__ import annotations

import numpy as np

from blink_numba.engines.cpu.simd import (
    add,
    exp,
    fma,
    load,
    max_lane,
    maximum,
    multiply,
    splat,
    store,
    sum_lanes,
)
from ring.jit import uncounted

LANES = 16
CHUNK = 64  # positions whose keys and values are worked on while they are in the first cache


@uncounted
def cache_offset(layer, block, head, blocks, kv_heads, head_dim, block_size):
    """Where a block's keys, or values, of one layer and head start."""
    return ((layer * blocks + block) * kv_heads + head) * head_dim * block_size


@uncounted
def write_kv(keys, values, at, slot, block_size, head_dim, source, key_at, value_at):
    """Put one token's key and value into slot `slot` of the block at `at`."""
    for d in range(head_dim):
        keys[at + d * block_size + slot] = source[key_at + d]
    for d in range(0, head_dim, LANES):
        store(values, at + slot * head_dim + d, load(source, value_at + d))


@uncounted
def _score_chunk(keys, a, b, c, d, block_size, head_dim, query, query_at, scores, scores_at):
    """Scores of 64 positions whose groups of sixteen keys start at `a`, `b`, `c` and `d`."""
    zero = splat(np.float32(0.0))
    first, second, third, fourth = zero, zero, zero, zero
    for k in range(head_dim):
        q = splat(query[query_at + k])
        step = k * block_size
        first = fma(q, load(keys, a + step), first)
        second = fma(q, load(keys, b + step), second)
        third = fma(q, load(keys, c + step), third)
        fourth = fma(q, load(keys, d + step), fourth)
    store(scores, scores_at, first)
    store(scores, scores_at + 16, second)
    store(scores, scores_at + 32, third)
    store(scores, scores_at + 48, fourth)


@uncounted
def _softmax(scores, at, length):
    """exp(score - largest) of `length` scores in place, zeros up to a multiple of 64; their sum."""
    padded = (length + CHUNK - 1) // CHUNK * CHUNK
    for k in range(at + length, at + padded):
        scores[k] = -np.inf
    largest = load(scores, at)
    for k in range(LANES, padded, LANES):
        largest = maximum(largest, load(scores, at + k))
    negative = splat(-max_lane(largest))
    total = splat(np.float32(0.0))
    for k in range(0, padded, LANES):
        store(scores, at + k, exp(add(load(scores, at + k), negative)))
    for k in range(at + length, at + padded):
        scores[k] = 0.0
    for k in range(0, padded, LANES):
        total = add(total, load(scores, at + k))
    return sum_lanes(total)


@uncounted
def _add_values(values, at, head_dim, count, weights, weights_at, out, out_at):
    """``out += Σ weight · value`` over `count` tokens of one block, in order."""
    d = 0
    while d + 4 * LANES <= head_dim:
        first, second = load(out, out_at + d), load(out, out_at + d + 16)
        third, fourth = load(out, out_at + d + 32), load(out, out_at + d + 48)
        row = at + d
        for token in range(count):
            weight = splat(weights[weights_at + token])
            first = fma(weight, load(values, row), first)
            second = fma(weight, load(values, row + 16), second)
            third = fma(weight, load(values, row + 32), third)
            fourth = fma(weight, load(values, row + 48), fourth)
            row += head_dim
        store(out, out_at + d, first)
        store(out, out_at + d + 16, second)
        store(out, out_at + d + 32, third)
        store(out, out_at + d + 48, fourth)
        d += 4 * LANES
    while d < head_dim:
        only = load(out, out_at + d)
        row = at + d
        for token in range(count):
            only = fma(splat(weights[weights_at + token]), load(values, row), only)
            row += head_dim
        store(out, out_at + d, only)
        d += LANES


@uncounted
def _group_at(table, group, per_block, head_offset, block_stride):
    """Where the keys of a group of sixteen positions start."""
    return head_offset + table[group // per_block] * block_stride + (group % per_block) * LANES


def attend(
    keys, values, head_offset, block_stride, block_size, table, length, queries, query_at, group, head_dim,
    scratch, stride,
):  # fmt: skip
    """Attention of a row's query heads that share a key/value head, into the queries' place.

    Parameters
    ----------
    keys, values : float32 array
        The cache.
    head_offset, block_stride : int64
        Where block 0 of the layer and key/value head starts, and how far its next block is.
    block_size : int64
    table : int64 array
        The seat's block table.
    length : int64
        Positions to attend to: the row's own and all before.
    queries : float32 array
        Query heads side by side from `query_at` on, already scaled; receives the outputs.
    group, head_dim : int64
        Query heads of the key/value head, and their size.
    scratch : float32 array
        ``group`` rows of `stride` scores, then one head's output.
    stride : int64
    """
    groups, per_block = (length + LANES - 1) // LANES, block_size // LANES
    for first in range(0, groups, 4):
        # spare groups of the last chunk repeat its last one, and are masked in the softmax
        a = _group_at(table, first, per_block, head_offset, block_stride)
        b = _group_at(table, min(first + 1, groups - 1), per_block, head_offset, block_stride)
        c = _group_at(table, min(first + 2, groups - 1), per_block, head_offset, block_stride)
        d = _group_at(table, min(first + 3, groups - 1), per_block, head_offset, block_stride)
        for head in range(group):
            at = head * stride + first * LANES
            _score_chunk(
                keys, a, b, c, d, block_size, head_dim, queries, query_at + head * head_dim, scratch, at
            )
    out_at = group * stride
    for head in range(group):
        total = _softmax(scratch, head * stride, length)
        for d in range(head_dim):
            scratch[out_at + d] = 0.0
        for start in range(0, length, block_size):
            at = head_offset + table[start // block_size] * block_stride
            count = min(block_size, length - start)
            _add_values(values, at, head_dim, count, scratch, head * stride + start, scratch, out_at)
        scale = splat(np.float32(1.0) / total)
        target = query_at + head * head_dim
        for d in range(0, head_dim, LANES):
            store(queries, target + d, multiply(load(scratch, out_at + d), scale))
