"""Attention over the paged cache on the tensor cores, for decode rows and packed prefill runs.

One definition serves both, bit for bit. A *row* is a query head of a token. Its keys are taken
in *chunks* of `CHUNK` positions from 0 on; within a chunk, tiles of `TILE` positions update a
running maximum, sum and output (online softmax); chunks are then merged in their order. Decode
spreads the chunks of a row over blocks and the last block to finish merges them; prefill does
one after the other in place. Positions after a row's own are masked, which changes no bit of
its result: they leave the maximum, multiply by one and add zero.

The 16 rows of a warp are the rows of an mma tile: query heads that share a key head, of one
token (decode) or of neighbouring tokens (prefill).

Sources: Milakov and Gimelshein 2018 (online softmax), Dao 2023 (FlashAttention-2), and "Flash-
Decoding" (the split over keys).
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
PREFILL_WARPS = 4
HEAD_DIMS = (16, 32, 64, 128)

copy_wait = ptx.copy_wait(STAGES - 1)
uint16, uint32, int32, int64, float32 = types.uint16, types.uint32, types.int32, types.int64, types.float32
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


@cache
def decode_kernel(head_dim: int, group: int):
    """Decode attention: a block attends one row's query heads of a key head to its share of chunks.

    Arguments: `q` uint32[rows, heads * head_dim / 2] (pairs of bf16), `keys` and `values`
    uint16[blocks, kv_heads, block_size, head_dim], `table` int64[seats * blocks_per_seat],
    `row_seat` and `row_position` int32[rows] (seat -1: padding), `partial`
    float32[rows, heads, chunks, head_dim], `partial_stats` float32[rows, heads, chunks, 2],
    `arrivals` int32[rows, kv_heads] (zero before and after), `out` uint16[rows, heads * head_dim].
    Grid ``(splits, kv_heads, rows)``, ``32 * ceil(group / 16)`` threads. `block_size` must be a
    multiple of `SPAN`.
    """
    warps = -(-group // 16)
    threads = warps * 32
    half_dim = head_dim // 2
    attend_chunk = chunk_function(head_dim, warps)
    stage_words = STAGES * 2 * TILE * head_dim * 2 // 4
    fragments, outputs, output_tiles = head_dim // 16 * 4, head_dim // 2, head_dim // 8
    pairs = -(-group * half_dim // threads)  # of outputs that a thread merges

    @cuda.jit(launch_bounds=threads)
    def decode_attention(
        q, keys, values, table, blocks_per_seat, row_seat, row_position, partial, partial_stats, arrivals, out
    ):
        row, kv_head, split = int32(cuda.blockIdx.z), int32(cuda.blockIdx.y), int32(cuda.blockIdx.x)
        seat = row_seat[row]
        if seat < 0:
            return
        storage = cuda.shared.array(stage_words, types.uint32, alignment=128)
        done = cuda.shared.array(1, types.int32)
        fragment = cuda.local.array(fragments, types.uint32)
        positions = cuda.local.array(2, types.int32)
        maxima = cuda.local.array(2, types.float32)
        sums = cuda.local.array(2, types.float32)
        result = cuda.local.array(outputs, types.float32)
        shared = ptx.shared_address(storage)
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        last = row_position[row]
        chunks = last // CHUNK + 1
        for half in range(2):
            member = warp * 16 + half * 8 + (lane >> 2)
            positions[half] = last if member < group else int32(-1)
            for step in range(head_dim // 16):
                fragment[step * 4 + half] = uint32(0)
                fragment[step * 4 + half + 2] = uint32(0)
                if member < group:
                    head_word = (kv_head * group + member) * half_dim
                    load_queries(q, row, head_word, step * 8, fragment, step * 4 + half)

        for chunk in range(split, chunks, cuda.gridDim.x):
            attend_chunk(
                shared, ptx.address(keys), ptx.address(values), table, int64(seat) * blocks_per_seat, kv_head,
                keys.shape[1], keys.shape[2], chunk, last, fragment, positions, maxima, sums, result,
            )  # fmt: skip
            for half in range(2):
                member = warp * 16 + half * 8 + (lane >> 2)
                if member < group:
                    head = kv_head * group + member
                    if lane & 3 == 0:
                        partial_stats[row, head, chunk, 0] = maxima[half]
                        partial_stats[row, head, chunk, 1] = sums[half]
                    for column in range(output_tiles):
                        at = column * 8 + (lane & 3) * 2
                        partial[row, head, chunk, at] = result[column * 4 + half * 2]
                        partial[row, head, chunk, at + 1] = result[column * 4 + half * 2 + 1]

        # the last of the blocks that had chunks merges; its fence pairs with the others'
        working = min(chunks, int32(cuda.gridDim.x))
        if split >= working:
            return
        cuda.threadfence()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            done[0] = cuda.atomic.add(arrivals, (row, kv_head), int32(1)) + 1
        cuda.syncthreads()
        if done[0] < working:
            return
        cuda.threadfence()
        if cuda.threadIdx.x == 0:
            arrivals[row, kv_head] = 0
        low = cuda.local.array(pairs, types.float32)
        high = cuda.local.array(pairs, types.float32)
        maximum = cuda.local.array(pairs, types.float32)
        total = cuda.local.array(pairs, types.float32)
        for i in range(pairs):
            low[i], high[i], total[i] = float32(0.0), float32(0.0), float32(0.0)
            maximum[i] = float32(MINUS_INFINITY)
        for chunk in range(chunks):  # the pairs within, so that their loads are under way together
            for i in range(pairs):
                index = cuda.threadIdx.x + i * threads
                if index < group * half_dim:
                    head, pair = kv_head * group + index // half_dim, index % half_dim
                    maximum[i], keep, take = merge_scales(maximum[i], partial_stats[row, head, chunk, 0])
                    total[i] = fma(partial_stats[row, head, chunk, 1], take, mul(total[i], keep))
                    low[i] = fma(partial[row, head, chunk, pair * 2], take, mul(low[i], keep))
                    high[i] = fma(partial[row, head, chunk, pair * 2 + 1], take, mul(high[i], keep))
        for i in range(pairs):
            index = cuda.threadIdx.x + i * threads
            if index < group * half_dim:
                inverse = libdevice.frcp_rn(total[i])
                word = ptx.pack_bf16(mul(low[i], inverse), mul(high[i], inverse))
                at = (kv_head * group * half_dim + index) * 2
                out[row, at] = uint16(word & uint32(0xFFFF))
                out[row, at + 1] = uint16(word >> uint32(16))

    return decode_attention


@cuda.jit(device=True, forceinline=True)
def find_tile(run_seat, run_start, tile, tokens_per_tile):
    """Run of a tile and its first token: ``(run, token)``, or ``(-1, 0)`` past the last."""
    for run in range(run_seat.shape[0]):
        if run_seat[run] >= 0:
            length = run_start[run + 1] - run_start[run]
            tiles = (length + tokens_per_tile - 1) // tokens_per_tile
            if tile < tiles:
                return run, run_start[run] + tile * tokens_per_tile
            tile -= tiles
    return int64(-1), int64(0)


def prefill_tile_tokens(group: int) -> int:
    """Tokens whose query heads of one key head fill a block's rows."""
    return max(PREFILL_WARPS * 16 // group, 1)


def prefill_tiles(tokens: int, sequences: int, group: int) -> int:
    """Most tiles that packed runs of `tokens` tokens make."""
    return -(-tokens // prefill_tile_tokens(group)) + sequences


@cache
def prefill_kernel(head_dim: int, group: int):
    """Prefill attention: a block attends neighbouring tokens of one run to all keys before them.

    Arguments as `decode_kernel`, with `row_position` int32[tokens], `run_seat` int64[sequences]
    and `run_start` int64[sequences + 1]; the runs' positions ascend by one.
    Grid ``(prefill_tiles(…), kv_heads)``, ``32 * PREFILL_WARPS`` threads. `group` ≤ 64.
    """
    warps = PREFILL_WARPS
    half_dim = head_dim // 2
    tokens_per_tile = prefill_tile_tokens(group)
    used_rows = tokens_per_tile * group
    attend_chunk = chunk_function(head_dim, warps)
    stage_words = STAGES * 2 * TILE * head_dim * 2 // 4
    fragments, outputs, output_tiles = head_dim // 16 * 4, head_dim // 2, head_dim // 8

    @cuda.jit(launch_bounds=warps * 32)
    def prefill_attention(q, keys, values, table, blocks_per_seat, run_seat, run_start, row_position, out):
        kv_head = int32(cuda.blockIdx.y)
        run, first_token = find_tile(run_seat, run_start, int64(cuda.blockIdx.x), tokens_per_tile)
        if run < 0:
            return
        storage = cuda.shared.array(stage_words, types.uint32, alignment=128)
        fragment = cuda.local.array(fragments, types.uint32)
        positions = cuda.local.array(2, types.int32)
        maxima = cuda.local.array(2, types.float32)
        sums = cuda.local.array(2, types.float32)
        result = cuda.local.array(outputs, types.float32)
        maximum = cuda.local.array(2, types.float32)
        total = cuda.local.array(2, types.float32)
        merged = cuda.local.array(outputs, types.float32)
        shared = ptx.shared_address(storage)
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        after = min(first_token + tokens_per_tile, run_start[run + 1])
        last = row_position[after - 1]
        seat = run_seat[run]
        for half in range(2):
            row = warp * 16 + half * 8 + (lane >> 2)
            token = first_token + row // group
            inside = row < used_rows and token < after
            positions[half] = row_position[token] if inside else int32(-1)
            maximum[half] = float32(MINUS_INFINITY)
            total[half] = float32(0.0)
            for step in range(head_dim // 16):
                fragment[step * 4 + half] = uint32(0)
                fragment[step * 4 + half + 2] = uint32(0)
                if inside:
                    head_word = (kv_head * group + row % group) * half_dim
                    load_queries(q, token, head_word, step * 8, fragment, step * 4 + half)
        for index in range(outputs):
            merged[index] = float32(0.0)

        for chunk in range(last // CHUNK + 1):
            attend_chunk(
                shared, ptx.address(keys), ptx.address(values), table, seat * blocks_per_seat, kv_head,
                keys.shape[1], keys.shape[2], chunk, last, fragment, positions, maxima, sums, result,
            )  # fmt: skip
            for half in range(2):
                before = maximum[half]
                maximum[half], keep, take = merge_scales(before, maxima[half])
                total[half] = fma(sums[half], take, mul(total[half], keep))
                for column in range(output_tiles):
                    for side in range(2):
                        o = column * 4 + half * 2 + side
                        merged[o] = fma(result[o], take, mul(merged[o], keep))

        for half in range(2):
            row = warp * 16 + half * 8 + (lane >> 2)
            token = first_token + row // group
            if row < used_rows and token < after:
                inverse = libdevice.frcp_rn(total[half])
                for column in range(output_tiles):
                    o = column * 4 + half * 2
                    word = ptx.pack_bf16(mul(merged[o], inverse), mul(merged[o + 1], inverse))
                    at = (kv_head * group + row % group) * head_dim + column * 8 + (lane & 3) * 2
                    out[token, at] = uint16(word & uint32(0xFFFF))
                    out[token, at + 1] = uint16(word >> uint32(16))

    return prefill_attention
