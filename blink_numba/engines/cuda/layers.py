"""The small kernels around the matrix products: embedding, norms, rotary positions, gating.

Rows are tokens: those of the decode batch, or those packed in a prefill. A row whose
`row_seat` is -1 is padding: it reads and writes nothing but zeros of its own. The residual
stream is float32, what goes into a matrix product is bf16 (uint16). Every row is computed by
one block in one order, whatever is beside it.
"""

from __future__ import annotations

from functools import cache

from blink_numba.engines.cuda import ptx
from blink_numba.engines.cuda._cuda import cuda, libdevice, types
from blink_numba.engines.sampling import FAULT_INPUT

EMBED_THREADS = 256
ROPE_HEADS = 4  # heads of a block of `rope_kernel`, a warp each
GATE_THREADS = 256

uint16, uint32, int32, int64, float32 = types.uint16, types.uint32, types.int32, types.int64, types.float32


@cuda.jit(device=True, forceinline=True)
def warp_sum(value):
    """Sum over a warp's lanes, the same in every lane."""
    for level in range(5):
        value = libdevice.fadd_rn(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 16 >> level))
    return value


@cuda.jit(device=True, forceinline=True)
def to_bf16(value):
    """The nearest bf16, as uint16."""
    return uint16(ptx.pack_bf16(value, float32(0.0)) & uint32(0xFFFF))


def norm_threads(width: int) -> int:
    """Threads that normalise a row; part of the result's definition, since they sum it."""
    return 256 if width <= 2048 else 512


@cache
def normalizer(width: int):
    """Device function ``(row, weight, epsilon, out)``: ``out = row / rms(row) * weight``, by one block.

    From float32[width] to bf16, by `norm_threads` threads; a thread keeps its part of the row in
    registers.
    """
    threads = norm_threads(width)
    warps, parts = threads // 32, -(-width // threads)

    @cuda.jit(device=True, forceinline=True)
    def normalize_row(row, weight, epsilon, out):
        values = cuda.local.array(parts, types.float32)
        weights = cuda.local.array(parts, types.float32)
        sums = cuda.shared.array(warps, types.float32)
        for part in range(parts):  # all loads before the first use
            index = cuda.threadIdx.x + part * threads
            values[part] = row[index] if index < width else float32(0.0)
            weights[part] = weight[index] if index < width else float32(0.0)
        square = float32(0.0)
        for part in range(parts):
            square = libdevice.fmaf_rn(values[part], values[part], square)
        square = warp_sum(square)
        if cuda.threadIdx.x & 31 == 0:
            sums[cuda.threadIdx.x >> 5] = square
        cuda.syncthreads()
        total = float32(0.0)
        for warp in range(warps):
            total = libdevice.fadd_rn(total, sums[warp])
        mean = libdevice.fdiv_rn(total, float32(width))
        scale = libdevice.frsqrt_rn(libdevice.fadd_rn(mean, epsilon))
        for part in range(parts):
            index = cuda.threadIdx.x + part * threads
            if index < width:
                out[index] = to_bf16(libdevice.fmul_rn(libdevice.fmul_rn(values[part], scale), weights[part]))

    return normalize_row


@cuda.jit(device=True, forceinline=True)
def embed_row(row, seat, token, position, table, positions, fault, row_seat, row_position, residual):
    """Begin row `row`: who it is, and its token's embedding in the residual stream."""
    if seat >= 0 and not (0 <= token < table.shape[0] and 0 <= position < positions):
        if cuda.threadIdx.x == 0:
            fault[0] = FAULT_INPUT
        seat, position = int64(-1), int64(0)  # attention goes by a run's positions, whoever its rows are
    if cuda.threadIdx.x == 0:
        row_seat[row] = seat
        row_position[row] = position
    for index in range(cuda.threadIdx.x, table.shape[1], EMBED_THREADS):
        if seat >= 0:
            residual[row, index] = ptx.low_bf16(uint32(table[token, index]))
        else:
            residual[row, index] = float32(0.0)


@cuda.jit(launch_bounds=EMBED_THREADS)
def embed_decode(
    decode_rows, seat_token, seat_position, table, positions, fault, row_seat, row_position, residual
):
    """Rows of a decode batch. Grid: rows; `EMBED_THREADS` threads.

    Parameters
    ----------
    decode_rows, seat_token, seat_position : int64[]
        Sections of the step buffer.
    table : uint16[vocab, hidden]
    positions : int64
        Positions that have rotary factors and room in a block table.
    fault : int64[1]
        Set to `FAULT_INPUT` by an id or position out of range; the row becomes padding.
    row_seat, row_position : int32[rows]
    residual : float32[rows, hidden]
    """
    row = cuda.blockIdx.x
    seat = decode_rows[row]
    token, position = int64(0), int64(0)
    if seat >= 0:
        token, position = seat_token[seat], seat_position[seat]
    embed_row(row, seat, token, position, table, positions, fault, row_seat, row_position, residual)


@cuda.jit(launch_bounds=EMBED_THREADS)
def embed_prefill(
    prefill_seat, prefill_token, prefill_position, table, positions, fault, row_seat, row_position, residual
):
    """Rows of packed prefill runs; parameters as `embed_decode`."""
    row = cuda.blockIdx.x
    seat = prefill_seat[row]
    token, position = int64(0), int64(0)
    if seat >= 0:
        token, position = prefill_token[row], prefill_position[row]
    embed_row(row, seat, token, position, table, positions, fault, row_seat, row_position, residual)


@cache
def norm_kernel(width: int):
    """Kernel ``(residual float32[rows, width], weight, epsilon, out uint16[rows, width])``.

    Grid: rows; `norm_threads` threads.
    """
    normalize_row = normalizer(width)

    @cuda.jit(launch_bounds=norm_threads(width))
    def rms_norm(residual, weight, epsilon, out):
        row = cuda.blockIdx.x
        normalize_row(residual[row], weight, epsilon, out[row])

    return rms_norm


@cache
def last_tokens_kernel(width: int):
    """Kernel that gathers the rows of a prefill to sample from: runs' last tokens, final norm applied.

    Grid: runs; `norm_threads` threads. A run that is unused or does not end its prompt gives a
    row of zeros and `sample_seat` -1.
    """
    normalize_row, threads = normalizer(width), norm_threads(width)

    @cuda.jit(launch_bounds=threads)
    def last_tokens(
        run_seat, run_start, run_samples, row_position, residual, weight, epsilon,
        sample_seat, sample_position, out,
    ):  # fmt: skip
        run = cuda.blockIdx.x
        seat = run_seat[run]
        samples = seat >= 0 and run_samples[run] == 1
        last = run_start[run + 1] - 1 if samples else int64(0)
        if cuda.threadIdx.x == 0:
            sample_seat[run] = seat if samples else int64(-1)
            sample_position[run] = row_position[last] if samples else int32(0)
        if samples:
            normalize_row(residual[last], weight, epsilon, out[run])
        else:
            for index in range(cuda.threadIdx.x, width, threads):
                out[run, index] = uint16(0)

    return last_tokens


@cache
def rope_kernel(head_dim: int, biased: bool, normed: bool):
    """Kernel that finishes Q, K, V: bias, head norm, rotation; Q to its buffer, K and V to the cache.

    Arguments: `qkv` float32[rows, (heads + 2 kv_heads) * head_dim], `bias` float32[same width],
    `q_norm`, `k_norm` float32[head_dim] (unread unless `biased`, `normed`), `epsilon`,
    `cosines`, `sines` float32[positions, head_dim / 2], `row_seat`, `row_position` int32[rows],
    `table` int64[seats * blocks_per_seat], `blocks_per_seat`, `q` uint16[rows, heads * head_dim],
    `keys`, `values` uint16[blocks, kv_heads, block_size, head_dim].
    Grid ``(ceil((heads + 2 kv_heads) / ROPE_HEADS), rows)``, block ``(32, ROPE_HEADS)``.
    """
    half = head_dim // 2
    pairs = -(-half // 32)  # of a lane

    @cuda.jit(launch_bounds=32 * ROPE_HEADS)
    def rope(
        qkv, bias, q_norm, k_norm, epsilon, cosines, sines, row_seat, row_position, table, blocks_per_seat,
        q, keys, values,
    ):  # fmt: skip
        row, lane = int32(cuda.blockIdx.y), int32(cuda.threadIdx.x)
        head = int32(cuda.blockIdx.x * ROPE_HEADS + cuda.threadIdx.y)
        kv_heads, block_size = int32(keys.shape[1]), keys.shape[2]
        heads = int32(q.shape[1] // head_dim)
        seat = row_seat[row]
        if head >= heads + 2 * kv_heads:
            return
        if seat < 0:
            if head < heads:
                for index in range(lane, head_dim, 32):
                    q[row, head * head_dim + index] = uint16(0)
            return
        position = row_position[row]
        low = cuda.local.array(pairs, types.float32)
        high = cuda.local.array(pairs, types.float32)
        square = float32(0.0)
        for pair in range(pairs):
            index = lane + pair * 32
            low[pair], high[pair] = float32(0.0), float32(0.0)
            if index < half:
                at = head * head_dim + index
                low[pair], high[pair] = qkv[row, at], qkv[row, at + half]
                if biased:
                    low[pair] = libdevice.fadd_rn(low[pair], bias[at])
                    high[pair] = libdevice.fadd_rn(high[pair], bias[at + half])
            square = libdevice.fmaf_rn(low[pair], low[pair], square)
            square = libdevice.fmaf_rn(high[pair], high[pair], square)
        if normed and head < heads + kv_heads:
            mean = libdevice.fdiv_rn(warp_sum(square), float32(head_dim))
            scale = libdevice.frsqrt_rn(libdevice.fadd_rn(mean, epsilon))
            for pair in range(pairs):
                index = lane + pair * 32
                if index < half:
                    weight = q_norm if head < heads else k_norm
                    low[pair] = libdevice.fmul_rn(libdevice.fmul_rn(low[pair], scale), weight[index])
                    high[pair] = libdevice.fmul_rn(libdevice.fmul_rn(high[pair], scale), weight[index + half])
        block = table[seat * blocks_per_seat + position // block_size]
        within = position % block_size
        for pair in range(pairs):
            index = lane + pair * 32
            if index < half:
                a, b = low[pair], high[pair]
                if head < heads + kv_heads:
                    cosine, sine = cosines[position, index], sines[position, index]
                    low[pair] = libdevice.fmaf_rn(-b, sine, libdevice.fmul_rn(a, cosine))
                    high[pair] = libdevice.fmaf_rn(a, sine, libdevice.fmul_rn(b, cosine))
                first, second = to_bf16(low[pair]), to_bf16(high[pair])
                if head < heads:
                    q[row, head * head_dim + index] = first
                    q[row, head * head_dim + index + half] = second
                elif head < heads + kv_heads:
                    keys[block, head - heads, within, index] = first
                    keys[block, head - heads, within, index + half] = second
                else:
                    values[block, head - heads - kv_heads, within, index] = first
                    values[block, head - heads - kv_heads, within, index + half] = second

    return rope


@cuda.jit(launch_bounds=GATE_THREADS)
def gate(gate_up, out):
    """``out = silu(gate) * up``: uint32[rows, i] (pairs of bf16; gates, then ups) to uint32[rows, i / 2].

    Grid ``(ceil(i / 2 / GATE_THREADS), rows)``.
    """
    row, index = cuda.blockIdx.y, cuda.blockIdx.x * GATE_THREADS + cuda.threadIdx.x
    if index < out.shape[1]:
        gates, ups = gate_up[row, index], gate_up[row, index + out.shape[1]]
        first = silu(ptx.low_bf16(gates)) * ptx.low_bf16(ups)
        second = silu(ptx.high_bf16(gates)) * ptx.high_bf16(ups)
        out[row, index] = ptx.pack_bf16(first, second)


@cuda.jit(device=True, forceinline=True)
def silu(value):
    """``x / (1 + exp(-x))``."""
    exponential = ptx.exp2(libdevice.fmul_rn(value, float32(-1.4426950408889634)))
    return libdevice.fdiv_rn(value, libdevice.fadd_rn(float32(1.0), exponential))
