"""Own matrix product on the tensor cores: the one of `--batch-invariant`.

``y = x Wᵀ``: every element of `y` is one chain of m16n8k16 products over k = 0, 16, 32, …, in
one accumulator, whatever the number of rows, the tile or the place of a row in it. So a row's
result never depends on its neighbours, and all tile shapes agree bit for bit.
"""

from __future__ import annotations

from functools import cache

from blink_numba.engines.cuda import ptx
from blink_numba.engines.cuda._cuda import cuda, types

THREADS = 128
TILE_N = 64
TILE_K = 64  # 128 bytes a row: 8 chunks of 16 bytes, XOR-swizzled by the row against bank conflicts
STAGES = 3
ROW_BYTES = TILE_K * 2
CHUNKS = ROW_BYTES // 16
SMALL_ROWS, LARGE_ROWS = 16, 64  # rows of a tile: decode, prefill

BF16, FLOAT32, ADD_FLOAT32 = "bf16", "float32", "add_float32"  # what becomes of a sum

copy_wait = ptx.copy_wait(STAGES - 2)
uint32, int32, int64, float32 = types.uint32, types.int32, types.int64, types.float32


@cuda.jit(device=True, forceinline=True)
def stage_rows(shared, source, first, rows, at_k, k, tile_rows):
    """Start copying ``source[first : first + tile_rows, at_k : at_k + TILE_K]`` to shared memory.

    Rows past `rows` and columns past `k` become zeros: they add nothing to a chain.
    """
    for chunk in range(cuda.threadIdx.x, tile_rows * CHUNKS, THREADS):
        row, column = chunk // CHUNKS, chunk % CHUNKS
        in_row, in_k = first + row, at_k + column * 8
        inside = in_row < rows and in_k < k
        element = int64(in_row) * k + in_k if inside else int64(0)
        to = shared + uint32(row * ROW_BYTES + ((column ^ (row & 7)) * 16))
        ptx.copy_async(to, source + element * 2, int32(16 if inside else 0))


@cuda.jit(device=True, forceinline=True)
def fragment_address(shared, row, chunk):
    """Where 16-byte `chunk` of `row` of a staged tile lies."""
    return shared + uint32(row * ROW_BYTES + ((chunk ^ (row & 7)) * 16))


@cache
def gemm_kernel(tile_m: int, store: str):
    """Kernel ``(x uint16[m, k], w uint16[n, k], y[m, n])`` with `tile_m` (16 or 64) rows a block.

    `store` is `BF16` (y is uint16), `FLOAT32`, or `ADD_FLOAT32` (added to what y holds).
    Grid ``(ceil(n / TILE_N), ceil(m / tile_m))``, `THREADS` threads. `k` must be a multiple of 8.
    """
    warps_m = 1 if tile_m == SMALL_ROWS else 2
    warps_n = 4 // warps_m
    tiles_m, tiles_n = tile_m // warps_m // 16, TILE_N // warps_n // 8  # mma tiles of a warp
    stage_bytes = (tile_m + TILE_N) * ROW_BYTES
    shared_words = STAGES * stage_bytes // 4
    sums, a_words = tiles_m * tiles_n * 4, tiles_m * 4
    as_bf16, add = store == BF16, store == ADD_FLOAT32

    @cuda.jit(launch_bounds=THREADS)
    def gemm(x, w, y):
        storage = cuda.shared.array(shared_words, types.uint32, alignment=128)
        shared = ptx.shared_address(storage)
        rows, columns, k = int32(x.shape[0]), int32(w.shape[0]), int32(x.shape[1])
        first_n, first_m = int32(cuda.blockIdx.x * TILE_N), int32(cuda.blockIdx.y * tile_m)
        x_at, w_at = ptx.address(x), ptx.address(w)
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        warp_m, warp_n = (warp // warps_n) * tiles_m * 16, (warp % warps_n) * tiles_n * 8
        steps = (k + TILE_K - 1) // TILE_K

        total = cuda.local.array(sums, types.float32)
        a = cuda.local.array(a_words, types.uint32)
        for index in range(sums):
            total[index] = float32(0.0)

        for step in range(STAGES - 1):
            if step < steps:
                to = shared + uint32(step * stage_bytes)
                stage_rows(to, x_at, first_m, rows, step * TILE_K, k, tile_m)
                stage_rows(to + uint32(tile_m * ROW_BYTES), w_at, first_n, columns, step * TILE_K, k, TILE_N)
            ptx.copy_commit()

        for step in range(steps):
            copy_wait()
            cuda.syncthreads()  # the stage read in the last turn is free, the next one is there
            ahead = step + STAGES - 1
            if ahead < steps:
                to = shared + uint32((ahead % STAGES) * stage_bytes)
                stage_rows(to, x_at, first_m, rows, ahead * TILE_K, k, tile_m)
                stage_rows(to + uint32(tile_m * ROW_BYTES), w_at, first_n, columns, ahead * TILE_K, k, TILE_N)
            ptx.copy_commit()

            a_stage = shared + uint32((step % STAGES) * stage_bytes)
            b_stage = a_stage + uint32(tile_m * ROW_BYTES)
            for inner in range(TILE_K // 16):
                for i in range(tiles_m):
                    row = warp_m + i * 16 + (lane & 15)
                    at = fragment_address(a_stage, row, inner * 2 + (lane >> 4))
                    a[i * 4], a[i * 4 + 1], a[i * 4 + 2], a[i * 4 + 3] = ptx.matrix_load(at)
                for j in range(tiles_n // 2):
                    row = warp_n + j * 16 + (lane & 7) + ((lane >> 4) << 3)
                    at = fragment_address(b_stage, row, inner * 2 + ((lane >> 3) & 1))
                    b0, b1, b2, b3 = ptx.matrix_load(at)
                    for i in range(tiles_m):
                        p = (i * tiles_n + j * 2) * 4
                        q = i * 4
                        total[p], total[p + 1], total[p + 2], total[p + 3] = ptx.matrix_multiply_add(
                            total[p], total[p + 1], total[p + 2], total[p + 3],
                            a[q], a[q + 1], a[q + 2], a[q + 3], b0, b1,
                        )  # fmt: skip
                        p += 4
                        total[p], total[p + 1], total[p + 2], total[p + 3] = ptx.matrix_multiply_add(
                            total[p], total[p + 1], total[p + 2], total[p + 3],
                            a[q], a[q + 1], a[q + 2], a[q + 3], b2, b3,
                        )  # fmt: skip

        for i in range(tiles_m):
            for half in range(2):
                row = first_m + warp_m + i * 16 + half * 8 + (lane >> 2)
                if row < rows:
                    for j in range(tiles_n):
                        column = first_n + warp_n + j * 8 + (lane & 3) * 2
                        p = (i * tiles_n + j) * 4 + half * 2
                        for side in range(2):  # the second of the last pair may be the next row's first
                            if column + side < columns:
                                if as_bf16:
                                    low = ptx.pack_bf16(total[p + side], float32(0.0)) & uint32(0xFFFF)
                                    y[row, column + side] = types.uint16(low)
                                elif add:
                                    y[row, column + side] += total[p + side]
                                else:
                                    y[row, column + side] = total[p + side]

    return gemm


def launch_gemm(x, w, y, store: str, stream) -> None:
    """Enqueue ``y = x wᵀ`` (or ``y += x wᵀ``); see `gemm_kernel` for the types."""
    rows = x.shape[0]
    tile_m = SMALL_ROWS if rows <= 2 * SMALL_ROWS else LARGE_ROWS
    grid = (-(-w.shape[0] // TILE_N), -(-rows // tile_m))
    gemm_kernel(tile_m, store)[grid, THREADS, stream](x, w, y)
