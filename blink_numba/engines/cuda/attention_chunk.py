"""Attention of a warp's rows to a chunk of keys: the part that decode and prefill share.

The 16 rows of a warp are the rows of an mma tile: query heads that share a key head, of one
token (decode) or of neighbouring tokens (prefill). Keys and values come from the paged cache in
tiles of `TILE` positions, asynchronously, one tile ahead. Sums and products are spelled out
(`fma`, `mul`, `add`), so that no compiler contracts them differently in two kernels.

Sources: Milakov and Gimelshein 2018 (online softmax), Dao 2023 (FlashAttention-2).
"""

from __future__ import annotations

import math
from functools import cache

from blink_numba.engines.cuda import ptx
from blink_numba.engines.cuda._cuda import cuda, libdevice, types

CHUNK = 128  # positions whose softmax is accumulated as one; part of the result's definition
TILE = 32  # positions staged in shared memory at once
SPAN = 16  # neighbouring positions that lie in one block: block sizes are multiples of it
STAGES = 2

copy_wait = ptx.copy_wait(STAGES - 1)
uint32, int32, int64, float32 = types.uint32, types.int32, types.int64, types.float32
MINUS_INFINITY = -math.inf
fma, mul, add = libdevice.fmaf_rn, libdevice.fmul_rn, libdevice.fadd_rn  # never contracted


@cuda.jit(device=True, forceinline=True)
def quad_maximum(value):
    """Maximum over the four lanes that hold a row of an mma tile."""
    value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 1))
    return max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 2))


@cuda.jit(device=True, forceinline=True)
def quad_sum(value):
    """Sum over the four lanes that hold a row of an mma tile."""
    value = add(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 1))
    return add(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 2))


@cuda.jit(device=True, forceinline=True)
def merge_scales(before, chunk):
    """Factors of the sum so far and of a chunk, and the new maximum, when merging two softmaxes."""
    maximum = max(before, chunk)
    shift = float32(0.0) if maximum == float32(MINUS_INFINITY) else maximum
    return maximum, ptx.exp2(before - shift), ptx.exp2(chunk - shift)


@cache
def chunk_function(head_dim: int, warps: int):
    """Device function that attends a block's rows to one chunk; see `attend_chunk` inside."""
    row_bytes = head_dim * 2
    row_chunks = row_bytes // 16
    swizzle = min(row_chunks, 8) - 1
    tile_bytes = TILE * row_bytes
    stage_bytes = 2 * tile_bytes  # keys, then values
    threads = warps * 32
    copies = -(-SPAN * row_chunks // threads)  # of a thread, to stage a span of keys
    even_copies = SPAN * row_chunks % threads == 0
    k_steps, score_tiles, output_tiles = head_dim // 16, TILE // 8, head_dim // 8
    score_words = score_tiles * 4
    scale = 1.0 / math.sqrt(head_dim) / math.log(2.0)  # exponentials are powers of two

    @cuda.jit(device=True, forceinline=True)
    def stage_tile(shared, keys, values, spans, tile, first, last):
        """Start copying positions ``first : first + TILE``; those past `last` become zeros.

        `spans` is, in lane i, where span i of the chunk begins within keys and values.
        """
        for part in range(TILE // SPAN):
            start = cuda.shfl_sync(0xFFFFFFFF, spans, tile * (TILE // SPAN) + part)
            to_part = shared + uint32(part * SPAN * row_bytes)
            there = last - (first + part * SPAN)  # rows up to this one have a position
            for step in range(copies):  # a constant count: unrolled, the index arithmetic folds
                index = cuda.threadIdx.x + step * threads
                if even_copies or index < SPAN * row_chunks:
                    row, chunk = index // row_chunks, index % row_chunks
                    to = to_part + uint32(row * row_bytes + ((chunk ^ (row & swizzle)) * 16))
                    at = start + index * 16
                    size = int32(16)
                    if row > there:
                        at, size = int64(0), int32(0)
                    ptx.copy_async(to, keys + at, size)
                    ptx.copy_async(to + uint32(tile_bytes), values + at, size)

    @cuda.jit(device=True, forceinline=True)
    def find_spans(table, table_at, head, heads, block_size, start, last):
        """Byte offset within keys and values of the lane's span of a chunk (any, where there is none)."""
        position = start + int32(cuda.threadIdx.x & 31) * SPAN
        if position > min(last, start + CHUNK - 1):
            return int64(0)
        block = table[table_at + uint32(position) // uint32(block_size)]
        within = uint32(position) % uint32(block_size)
        return ((block * heads + head) * block_size + int64(within)) * row_bytes

    @cuda.jit(device=True, forceinline=True)
    def attend_chunk(
        shared, keys, values, table, table_at, head, heads, block_size, chunk, last,
        q, positions, maxima, sums, out,
    ):  # fmt: skip
        """Softmax-weighted values of a chunk, unnormalised, for the two rows a lane shares.

        `last` is the block's last position; `q` the lane's query fragments, `positions` those of
        its two rows (-1: no row). Results: `maxima`, `sums` of both rows (complete in every
        lane), `out` the lane's part of the 16 × head_dim output, as mma accumulators.
        """
        lane = int32(cuda.threadIdx.x & 31)
        scores = cuda.local.array(score_words, types.float32)
        for half in range(2):
            maxima[half] = float32(MINUS_INFINITY)
            sums[half] = float32(0.0)
        for index in range(output_tiles * 4):
            out[index] = float32(0.0)
        start = chunk * CHUNK
        end = min(start + CHUNK, last + 1)
        tiles = (end - start + TILE - 1) // TILE
        spans = find_spans(table, table_at, head, heads, block_size, start, last)
        stage_tile(shared, keys, values, spans, 0, start, last)
        ptx.copy_commit()
        for tile in range(tiles):
            first = start + tile * TILE
            if tile + 1 < tiles:
                to = shared + uint32(((tile + 1) % STAGES) * stage_bytes)
                stage_tile(to, keys, values, spans, tile + 1, first + TILE, last)
            ptx.copy_commit()
            copy_wait()
            cuda.syncthreads()
            k_stage = shared + uint32((tile % STAGES) * stage_bytes)
            v_stage = k_stage + uint32(tile_bytes)

            for index in range(score_tiles * 4):
                scores[index] = float32(0.0)
            for step in range(k_steps):
                for pair in range(score_tiles // 2):
                    row = pair * 16 + (lane & 7) + ((lane >> 4) << 3)
                    column = (step * 2 + ((lane >> 3) & 1)) ^ (row & swizzle)
                    b0, b1, b2, b3 = ptx.matrix_load(k_stage + uint32(row * row_bytes + column * 16))
                    s, f = pair * 8, step * 4
                    scores[s], scores[s + 1], scores[s + 2], scores[s + 3] = ptx.matrix_multiply_add(
                        scores[s], scores[s + 1], scores[s + 2], scores[s + 3],
                        q[f], q[f + 1], q[f + 2], q[f + 3], b0, b1,
                    )  # fmt: skip
                    s += 4
                    scores[s], scores[s + 1], scores[s + 2], scores[s + 3] = ptx.matrix_multiply_add(
                        scores[s], scores[s + 1], scores[s + 2], scores[s + 3],
                        q[f], q[f + 1], q[f + 2], q[f + 3], b2, b3,
                    )  # fmt: skip

            for half in range(2):
                highest = float32(MINUS_INFINITY)
                for column in range(score_tiles):
                    for side in range(2):
                        s = column * 4 + half * 2 + side
                        position = first + column * 8 + (lane & 3) * 2 + side
                        value = mul(scores[s], float32(scale))
                        scores[s] = value if position <= positions[half] else float32(MINUS_INFINITY)
                        highest = max(highest, scores[s])
                maximum = max(maxima[half], quad_maximum(highest))
                shift = float32(0.0) if maximum == float32(MINUS_INFINITY) else maximum
                decay = ptx.exp2(maxima[half] - shift)
                maxima[half] = maximum
                weight = float32(0.0)
                for column in range(score_tiles):
                    for side in range(2):
                        s = column * 4 + half * 2 + side
                        scores[s] = ptx.exp2(scores[s] - shift)
                        weight = add(weight, scores[s])
                sums[half] = fma(sums[half], decay, weight)
                for column in range(output_tiles):
                    for side in range(2):
                        o = column * 4 + half * 2 + side
                        out[o] = mul(out[o], decay)

            for step in range(TILE // 16):
                s = step * 8
                a0 = ptx.pack_bf16(scores[s], scores[s + 1])
                a1 = ptx.pack_bf16(scores[s + 2], scores[s + 3])
                a2 = ptx.pack_bf16(scores[s + 4], scores[s + 5])
                a3 = ptx.pack_bf16(scores[s + 6], scores[s + 7])
                for pair in range(output_tiles // 2):
                    row = step * 16 + (lane & 15)
                    column = (pair * 2 + (lane >> 4)) ^ (row & swizzle)
                    b0, b1, b2, b3 = ptx.matrix_load_transposed(
                        v_stage + uint32(row * row_bytes + column * 16)
                    )
                    o = pair * 8
                    out[o], out[o + 1], out[o + 2], out[o + 3] = ptx.matrix_multiply_add(
                        out[o], out[o + 1], out[o + 2], out[o + 3], a0, a1, a2, a3, b0, b1
                    )
                    o += 4
                    out[o], out[o + 1], out[o + 2], out[o + 3] = ptx.matrix_multiply_add(
                        out[o], out[o + 1], out[o + 2], out[o + 3], a0, a1, a2, a3, b2, b3
                    )
            cuda.syncthreads()  # the stage may be overwritten
        for half in range(2):
            sums[half] = quad_sum(sums[half])

    return attend_chunk


@cuda.jit(device=True, forceinline=True)
def load_queries(q, token, head_word, column_words, fragment, at):
    """Two of a lane's query fragment words of one row: its 16 columns from ``column_words`` on."""
    word = head_word + column_words + (cuda.threadIdx.x & 3)
    fragment[at] = q[token, word]
    fragment[at + 2] = q[token, word + 4]
