"""Sampling in the step, and the release that ends it. Definition: `blink_numba.engines.sampling`.

A block samples a row. Weights are integers, so the block's histograms (shared-memory atomics)
and sums give the same edge and the same token in whatever order its threads run.
"""

from __future__ import annotations

from blink_numba.engines.cuda import ptx
from blink_numba.engines.cuda._cuda import cuda, libdevice, types
from blink_numba.engines.cuda.logprobs import write_likeliest, write_sampled
from blink_numba.engines.cuda.row import (
    BATCH,
    MINUS_INFINITY,
    THREADS,
    WARPS,
    block_largest,
    load_batch,
    own_largest,
    warp_sum,
)
from blink_numba.engines.sampling import FAULT_LOGITS, ONE_WEIGHT, random_bits, share_of, target_weight
from graphs.step_io import (
    DONE,
    FAULT,
    LOGPROBS,
    SAMPLING_WORDS,
    SEED,
    SUPPRESS_EOS,
    TEMPERATURE_MICRO,
    TICKET,
    TOP_K,
    TOP_P_MICRO,
    record_at,
)
from ring.atomics import store_release, store_release_device

BUCKETS = 1024
_LOG2_E_MICRO = 1.4426950408889634e6

uint32, int32, int64, float32 = types.uint32, types.int32, types.int64, types.float32
_LARGEST_FLOAT = 3.4028234663852886e38


@cuda.jit(device=True, forceinline=True)
def weight_of(logit, largest, inverse):
    """A token's weight; `inverse` is log2(e) / T."""
    scaled = ptx.exp2(libdevice.fmul_rn(libdevice.fsub_rn(logit, largest), inverse))
    return int64(libdevice.float2int_rn(libdevice.fmul_rn(scaled, float32(ONE_WEIGHT))))


@cuda.jit(device=True, forceinline=True)
def key_of(weight):
    """Order-preserving key of a weight > 0: its top bit's place (5 bits), then the 30 bits below."""
    top = int64(31) - cuda.clz(int32(weight))
    return (top << 30) | ((weight << (30 - top)) & int64(ONE_WEIGHT - 1))


@cuda.jit(device=True, forceinline=True)
def pick_bucket(histogram, buckets, need, choice):
    """Highest bucket above and in which lies at least `need`; by the first warp.

    ``choice[0]`` is the bucket, ``choice[1]`` what is still needed within it.
    """
    if cuda.threadIdx.x < 32:
        lane = int32(cuda.threadIdx.x)
        span = buckets // 32
        own = int64(0)
        for index in range(lane * span, (lane + 1) * span):
            own += histogram[index]
        upto = own  # of this lane's buckets and all above
        for level in range(5):
            step = 1 << level
            above = cuda.shfl_down_sync(0xFFFFFFFF, upto, step)
            if lane + step < 32:
                upto += above
        if upto >= need and upto - own < need:
            left = need - (upto - own)
            bucket = (lane + 1) * span - 1
            while histogram[bucket] < left:
                left -= histogram[bucket]
                bucket -= 1
            choice[0] = bucket
            choice[1] = left
        elif lane == 0 and upto < need:  # fewer than asked for: everything is kept
            choice[0] = -1
    cuda.syncthreads()


@cuda.jit(device=True, forceinline=True)
def find_edge(logits, row, largest, inverse, floor, need, counting, histogram, choice):
    """Least key to keep so that at least `need` lies at or above it, among keys ≥ `floor`.

    What lies there is tokens (`counting`) or weight. A radix descent over the 35 bits of a key.
    """
    batch = cuda.local.array(BATCH, types.float32)
    edge = int64(0)
    shift = int32(35)
    for level in range(4):
        bits = int32(10) if level == 0 else (int32(9) if level == 1 else int32(8))
        buckets = int64(1) << bits
        known = shift  # bits from here on up agree with `edge`
        shift -= bits
        for index in range(cuda.threadIdx.x, buckets, THREADS):
            histogram[index] = 0
        cuda.syncthreads()
        for start in range(cuda.threadIdx.x, logits.shape[1], THREADS * BATCH):
            load_batch(logits, row, start, THREADS, logits.shape[1], batch)
            for i in range(BATCH):
                weight = weight_of(batch[i], largest, inverse)
                if weight > 0:
                    key = key_of(weight)
                    if key >= floor and (key >> known) == (edge >> known):
                        unit = int64(1) if counting else weight
                        cuda.atomic.add(histogram, (key >> shift) & (buckets - 1), unit)
        cuda.syncthreads()
        pick_bucket(histogram, buckets, need, choice)
        if choice[0] < 0:
            return floor
        edge |= choice[0] << shift
        need = choice[1]
        cuda.syncthreads()
    return edge


@cuda.jit(device=True, forceinline=True)
def kept_weight(logit, largest, inverse, edge):
    """Weight of a token, 0 if it is below the edge."""
    weight = weight_of(logit, largest, inverse)
    if weight > 0 and key_of(weight) < edge:
        return int64(0)
    return weight


@cuda.jit(device=True, forceinline=True)
def sum_pieces(logits, row, first, after, largest, inverse, edge, sums):
    """Kept weight of each warp's piece of the ids ``first … after - 1``; returns the pieces' length."""
    length = (after - first + WARPS - 1) // WARPS
    warp = int32(cuda.threadIdx.x >> 5)
    start = first + warp * length
    batch = cuda.local.array(BATCH, types.float32)
    end = min(start + length, after)
    own = int64(0)
    for at in range(start + (cuda.threadIdx.x & 31), end, 32 * BATCH):
        load_batch(logits, row, at, 32, end, batch)
        for i in range(BATCH):
            own += kept_weight(batch[i], largest, inverse, edge)
    own = warp_sum(own)
    cuda.syncthreads()
    if cuda.threadIdx.x & 31 == 0:
        sums[warp] = own
    cuda.syncthreads()
    return length


@cuda.jit(device=True, forceinline=True)
def total_weight(sums):
    """Sum over the pieces."""
    total = int64(0)
    for warp in range(WARPS):
        total += sums[warp]
    return total


@cuda.jit(device=True, forceinline=True)
def draw(logits, row, largest, inverse, edge, bits, sums):
    """The first id at which the running sum of kept weights exceeds the target."""
    first, after = int64(0), int64(logits.shape[1])
    length = sum_pieces(logits, row, first, after, largest, inverse, edge, sums)
    target = target_weight(total_weight(sums), bits)
    while True:
        piece = int64(0)
        while sums[piece] <= target:
            target -= sums[piece]
            piece += 1
        first += piece * length
        after = min(first + length, after)
        if length == 1:
            return first
        length = sum_pieces(logits, row, first, after, largest, inverse, edge, sums)


@cuda.jit(device=True, forceinline=True)
def hide(logits, row, ids):
    """Make tokens impossible; each thread gets back the logit that it is to `show`."""
    kept = float32(0.0)
    if cuda.threadIdx.x < ids.shape[0]:
        kept = logits[row, ids[cuda.threadIdx.x]]
    cuda.syncthreads()
    if cuda.threadIdx.x < ids.shape[0]:
        logits[row, ids[cuda.threadIdx.x]] = float32(MINUS_INFINITY)
    cuda.syncthreads()
    return kept


@cuda.jit(device=True, forceinline=True)
def show(logits, row, ids, kept):
    """Undo `hide`."""
    if cuda.threadIdx.x < ids.shape[0]:
        logits[row, ids[cuda.threadIdx.x]] = kept
    cuda.syncthreads()


@cuda.jit(launch_bounds=THREADS)
def sample(logits, row_seat, row_position, sampling, eos_ids, fault, step_control, out_token, out_logprobs):
    """Sample a token for each row, and what it wants to know of it. Grid: rows; `THREADS` threads.

    Parameters
    ----------
    logits : float32[rows, vocab]
        Left as they were, but for EOS ids that a row suppresses.
    row_seat, row_position : int32[rows]
        Seat (-1: padding) and position of the row's input token; the sampled one takes the next.
    sampling : int64[seats * SAMPLING_WORDS]
    eos_ids : int32[]
        At most `THREADS`.
    fault : int64[1]
    step_control : int64[16]
        With the step's ticket.
    out_token : int64[seats]
    out_logprobs : int64[2 * seats * RECORD_WORDS]
    """
    histogram = cuda.shared.array(BUCKETS, types.int64)
    sums = cuda.shared.array(WARPS, types.int64)
    choice = cuda.shared.array(2, types.int64)
    values = cuda.shared.array(WARPS, types.float32)
    ids = cuda.shared.array(WARPS, types.int32)
    row = cuda.blockIdx.x
    seat = row_seat[row]
    if seat < 0:
        return
    words = int64(seat) * SAMPLING_WORDS
    pairs = sampling[words + LOGPROBS]
    record, raw_largest, normalizer = int64(0), float32(0.0), float32(0.0)
    if pairs > 0:
        record = record_at(step_control[TICKET], int64(out_token.shape[0]), int64(seat))
        raw_largest, normalizer = write_likeliest(logits, row, pairs - 1, out_logprobs, record, values, ids)
    hides = sampling[words + SUPPRESS_EOS] != 0
    kept = float32(0.0)
    if hides:
        kept = hide(logits, row, eos_ids)
    own, own_id = own_largest(logits, row)
    largest, token = block_largest(own, own_id, values, ids)
    if not (abs(largest) <= float32(_LARGEST_FLOAT)):
        if cuda.threadIdx.x == 0:
            fault[0] = FAULT_LOGITS
            out_token[seat] = 0
        return
    temperature = sampling[words + TEMPERATURE_MICRO]
    if temperature > 0:
        inverse = libdevice.fdiv_rn(float32(_LOG2_E_MICRO), float32(temperature))
        edge = int64(0)
        top_k, top_p = sampling[words + TOP_K], sampling[words + TOP_P_MICRO]
        if top_k > 0:
            edge = find_edge(logits, row, largest, inverse, edge, top_k, True, histogram, choice)
        if top_p < 1_000_000:
            sum_pieces(logits, row, int64(0), int64(logits.shape[1]), largest, inverse, edge, sums)
            need = share_of(total_weight(sums), top_p)
            edge = find_edge(logits, row, largest, inverse, edge, need, False, histogram, choice)
        bits = random_bits(sampling[words + SEED], int64(row_position[row]) + 1)
        token = int32(draw(logits, row, largest, inverse, edge, bits, sums))
    if pairs > 0:
        if hides:
            show(logits, row, eos_ids, kept)
        write_sampled(logits, row, token, raw_largest, normalizer, out_logprobs, record, sums)
    if cuda.threadIdx.x == 0:
        out_token[seat] = token


@cuda.jit(launch_bounds=32)
def finish_step(control, fault):
    """Last node of a step: its error code, then DONE = TICKET for a scheduler on this device to acquire."""
    if cuda.threadIdx.x == 0:
        control[FAULT] = fault[0]
        fault[0] = 0
        store_release_device(control, DONE, control[TICKET])


@cuda.jit(launch_bounds=32)
def finish_step_for_host(control, fault):
    """As `finish_step`, for a scheduler on the host, in whose memory `control` is."""
    if cuda.threadIdx.x == 0:
        control[FAULT] = fault[0]
        fault[0] = 0
        store_release(control, DONE, control[TICKET])
