"""A block's looks at a row of logits: loads in batches, its largest, sums over warps."""

from __future__ import annotations

from blink_numba.engines.cuda._cuda import cuda, types

THREADS = 512
WARPS = THREADS // 32
BATCH = 8  # logits a thread loads before it looks at the first: they come from far away
NO_ID = 1 << 30
MINUS_INFINITY = float("-inf")

float32, int32 = types.float32, types.int32


@cuda.jit(device=True, forceinline=True)
def load_batch(logits, row, first, stride, after, batch):
    """``logits[row, first + stride * i]`` for `BATCH` i; -inf from id `after` on."""
    for i in range(BATCH):
        token = first + i * stride
        batch[i] = logits[row, token] if token < after else float32(MINUS_INFINITY)


@cuda.jit(device=True, forceinline=True)
def own_largest(logits, row):
    """Largest logit of this thread's ids (those of its number, modulo `THREADS`) and the lowest such id."""
    batch = cuda.local.array(BATCH, types.float32)
    best, best_id = float32(MINUS_INFINITY), int32(NO_ID)
    for first in range(cuda.threadIdx.x, logits.shape[1], THREADS * BATCH):
        load_batch(logits, row, first, THREADS, logits.shape[1], batch)
        for i in range(BATCH):
            if batch[i] > best:
                best, best_id = batch[i], int32(first + i * THREADS)
    return best, best_id


@cuda.jit(device=True, forceinline=True)
def warp_largest(best, best_id):
    """Largest of a warp's values and the lowest id that has it, in every lane."""
    for level in range(5):
        step = 16 >> level
        other = cuda.shfl_xor_sync(0xFFFFFFFF, best, step)
        other_id = cuda.shfl_xor_sync(0xFFFFFFFF, best_id, step)
        if other > best or (other == best and other_id < best_id):
            best, best_id = other, other_id
    return best, best_id


@cuda.jit(device=True, forceinline=True)
def block_largest(best, best_id, values, ids):
    """Largest of the block's values and the lowest id that has it, in every thread.

    `values`, `ids`: of `WARPS` each, shared.
    """
    best, best_id = warp_largest(best, best_id)
    if cuda.threadIdx.x & 31 == 0:
        values[cuda.threadIdx.x >> 5] = best
        ids[cuda.threadIdx.x >> 5] = best_id
    cuda.syncthreads()
    for warp in range(WARPS):
        if values[warp] > best or (values[warp] == best and ids[warp] < best_id):
            best, best_id = values[warp], ids[warp]
    cuda.syncthreads()
    return best, best_id


@cuda.jit(device=True, forceinline=True)
def warp_sum(value):
    """Sum of int64 over a warp's lanes, the same in every lane."""
    for level in range(5):
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 16 >> level)
    return value
