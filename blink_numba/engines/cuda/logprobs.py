"""Log-probabilities of a row of logits by a block, as `ring.logprobs` defines them."""

from __future__ import annotations

from blink_numba.engines.cuda import ptx
from blink_numba.engines.cuda._cuda import cuda, libdevice, types
from blink_numba.engines.cuda.row import (
    BATCH,
    MINUS_INFINITY,
    NO_ID,
    THREADS,
    WARPS,
    block_largest,
    load_batch,
    own_largest,
    warp_largest,
    warp_sum,
)
from ring.logprobs import NO_CHANCE, pack_pair

int32, int64, float32 = types.int32, types.int64, types.float32
_LOG2_E = 1.4426950408889634


@cuda.jit(device=True, forceinline=True)
def log_normalizer(logits, row, largest, largest_id, sums):
    """Log of the sum of ``exp(logit - largest)``, in every thread.

    The sum leaves the largest out and comes back by log1p: the log-probability of a token that is
    all but certain keeps its digits. Always summed in one order.
    """
    batch = cuda.local.array(BATCH, types.float32)
    own = float32(0.0)
    for first in range(cuda.threadIdx.x, logits.shape[1], THREADS * BATCH):
        load_batch(logits, row, first, THREADS, logits.shape[1], batch)
        for i in range(BATCH):
            if first + i * THREADS != largest_id:
                power = libdevice.fmul_rn(libdevice.fsub_rn(batch[i], largest), float32(_LOG2_E))
                own = libdevice.fadd_rn(own, ptx.exp2(power))
    for level in range(5):
        own = libdevice.fadd_rn(own, cuda.shfl_xor_sync(0xFFFFFFFF, own, 16 >> level))
    if cuda.threadIdx.x & 31 == 0:
        sums[cuda.threadIdx.x >> 5] = own
    cuda.syncthreads()
    others = float32(0.0)
    for warp in range(WARPS):
        others = libdevice.fadd_rn(others, sums[warp])
    cuda.syncthreads()
    return libdevice.log1pf(others)


@cuda.jit(device=True, forceinline=True)
def surprise_of(logit, largest, normalizer):
    """Bits of a token's surprise, an integer."""
    surprise = libdevice.fadd_rn(libdevice.fsub_rn(largest, logit), normalizer)
    return int64(libdevice.float_as_int(surprise)) if surprise > float32(0.0) else int64(0)


@cuda.jit(device=True, forceinline=True)
def next_largest(logits, row, owner, value, token):
    """The best of a thread's ids behind (`value`, `token`), found by its warp; in every lane."""
    best, best_id = float32(MINUS_INFINITY), int32(NO_ID)
    for other in range(owner + THREADS * (cuda.threadIdx.x & 31), logits.shape[1], THREADS * 32):
        logit = logits[row, other]
        behind = logit < value or (logit == value and other > token)
        if behind and logit > best:
            best, best_id = logit, int32(other)
    return warp_largest(best, best_id)


@cuda.jit(device=True, forceinline=True)
def write_likeliest(logits, row, wanted, records, record, values, ids):
    """Pairs of the `wanted` likeliest tokens to ``records[record + 1:]``; equals by their ids.

    Each thread holds the best of its own ids. The best of all goes out, and the warp of its thread
    finds that thread's next: one pass over the row, and a row's 512th part for each pair.

    Returns
    -------
    float32, float32
        Largest logit and log of the sum of ``exp(logit - largest)``.
    """
    best, best_id = own_largest(logits, row)
    largest, token = block_largest(best, best_id, values, ids)
    normalizer = log_normalizer(logits, row, largest, token, values)
    value = largest
    for k in range(wanted):
        if k > 0:
            value, token = block_largest(best, best_id, values, ids)
        if cuda.threadIdx.x == 0:
            pair = pack_pair(int64(NO_CHANCE), int64(0))
            if token < NO_ID:
                pair = pack_pair(surprise_of(value, largest, normalizer), int64(token))
            records[record + 1 + k] = pair
        owner = token & (THREADS - 1)
        if cuda.threadIdx.x >> 5 == owner >> 5:
            following, following_id = next_largest(logits, row, owner, value, token)
            if cuda.threadIdx.x == owner:
                best, best_id = following, following_id
    return largest, normalizer


@cuda.jit(device=True, forceinline=True)
def write_sampled(logits, row, token, largest, normalizer, records, record, counts):
    """The pair of the token sampled, with its rank, to ``records[record]``."""
    batch = cuda.local.array(BATCH, types.float32)
    logit = logits[row, token]
    above = int64(0)
    for first in range(cuda.threadIdx.x, logits.shape[1], THREADS * BATCH):
        load_batch(logits, row, first, THREADS, logits.shape[1], batch)
        for i in range(BATCH):
            if batch[i] > logit:
                above += int64(1)
    above = warp_sum(above)
    cuda.syncthreads()  # `counts` may still be read as what it was before
    if cuda.threadIdx.x & 31 == 0:
        counts[cuda.threadIdx.x >> 5] = above
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        rank = int64(1)
        for warp in range(WARPS):
            rank += counts[warp]
        records[record] = pack_pair(surprise_of(logit, largest, normalizer), rank)
