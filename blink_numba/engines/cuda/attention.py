"""Attention over the paged cache on the tensor cores, for decode rows and packed prefill runs.

One definition serves both, bit for bit. A *row* is a query head of a token. Its keys are taken
in *chunks* of `CHUNK` positions from 0 on; within a chunk, tiles of `TILE` positions update a
running maximum, sum and output (online softmax); chunks are then merged in their order. Decode
spreads the chunks of a row over blocks and the last block to finish merges them; prefill does
one after the other in place. Positions after a row's own are masked, which changes no bit of
its result: they leave the maximum, multiply by one and add zero.

`attention_chunk` has what happens within a chunk; here are the kernels around it. Source of the
split over keys: "Flash-Decoding for long-context inference" (2023).
"""

from __future__ import annotations

from functools import cache

from blink_numba.engines.cuda import ptx
from blink_numba.engines.cuda._cuda import cuda, libdevice, types
from blink_numba.engines.cuda.attention_chunk import (
    CHUNK,
    MINUS_INFINITY,
    STAGES,
    TILE,
    chunk_function,
    fma,
    load_queries,
    merge_scales,
    mul,
)

PREFILL_WARPS = 4
HEAD_DIMS = (16, 32, 64, 128)

uint16, uint32, int32, int64, float32 = types.uint16, types.uint32, types.int32, types.int64, types.float32


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
