"""Kernels at sizes that models and configurations may have and that fill no tile, warp or chunk.

Every output has a row or an entry more than the launch may write, which must stay as it was: with
rows one after the other, the element behind a row is another row's.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba.cuda.dispatcher", reason="needs the numba-cuda target")

from blink_numba.engines.cuda import ahead, attention, gemm, layers, sample
from blink_numba.engines.cuda.weights import to_bf16
from graphs.step_io import RECORD_WORDS, SAMPLING_WORDS, SEED, TICKET, late_at, record_at
from ring.logprobs import unpack_records
from tests.cuda_reference import as_float, rms_norm, rotate, sampled_token
from tests.cuda_reference import attention as expected_attention
from tests.logprobs import check_record

EPSILON = 1e-5
POISON = 0x7FC0  # a bf16 NaN
OFF = 1_000_000


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(8)


def normals(rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("store", [gemm.FLOAT32, gemm.BF16, gemm.ADD_FLOAT32])
@pytest.mark.parametrize(
    ("tile_m", "rows", "columns", "k"),
    [(16, 1, 1, 8), (16, 17, 65, 24), (16, 3, 63, 72), (64, 33, 67, 8), (64, 65, 1, 136)],
)
def test_product(run, rng, store, tile_m, rows, columns, k):
    x, w = to_bf16(normals(rng, rows, k)), to_bf16(normals(rng, columns, k))
    y = np.full((rows + 1, columns), 7, np.uint16 if store == gemm.BF16 else np.float32)
    grid = (-(-columns // gemm.TILE_N), -(-rows // tile_m))
    run(gemm.gemm_kernel(tile_m, store), grid, gemm.THREADS, (x, w, y))
    assert (y[rows] == 7).all()
    sums = (
        as_float(y[:rows]) if store == gemm.BF16 else y[:rows] - np.float32(7 * (store == gemm.ADD_FLOAT32))
    )
    exact = as_float(x).astype(np.float64) @ as_float(w).T.astype(np.float64)
    near = 1e-2 if store == gemm.BF16 else 1e-4
    np.testing.assert_allclose(sums, exact, rtol=near, atol=near)


@pytest.mark.parametrize(("vocab", "hidden", "rows"), [(1, 8, 1), (259, 264, 3), (7, 248, 17)])
def test_embedding(run, rng, vocab, hidden, rows):
    table, seats = to_bf16(normals(rng, vocab, hidden)), rng.permutation(rows)
    seats[rows // 2] = -1 if rows > 1 else 0
    tokens, positions = rng.integers(0, vocab, rows), np.full(rows, 99)
    tokens[0] = vocab - 1
    residual, fault = np.full((rows + 1, hidden), 7, np.float32), np.zeros(1, np.int64)
    row_seat, row_position = np.full(rows + 1, 77, np.int32), np.full(rows + 1, 77, np.int32)
    arguments = (seats, tokens, positions, table, 100, fault, row_seat, row_position, residual)
    run(layers.embed_decode, rows, layers.EMBED_THREADS, arguments)
    expected = np.where(seats[:, None] >= 0, as_float(table)[tokens[seats]], 0)
    np.testing.assert_array_equal(residual, [*expected, np.full(hidden, 7)])
    assert row_seat.tolist() == [*seats, 77]
    assert (fault[0], row_position[rows]) == (0, 77)


@pytest.mark.parametrize("width", [8, 248, 264, 2040, 2056])
def test_norm_and_last_tokens(run, rng, width):
    """Runs of one token, an unused one between others, one that does not end its prompt."""
    residual, weight = normals(rng, 7, width), normals(rng, width)
    out, threads = np.full((2, width), 9, np.uint16), layers.norm_threads(width)
    run(layers.norm_kernel(width), 1, threads, (residual, weight, np.float32(EPSILON), out))
    np.testing.assert_allclose(as_float(out[0]), rms_norm(residual[0], weight, EPSILON), rtol=5e-3)
    assert (out[1] == 9).all()

    seat, position = np.full(6, 77, np.int32), np.full(6, 77, np.int32)
    gathered = np.full((6, width), 9, np.uint16)
    runs = np.array([4, -1, 0, 9, 2]), np.array([0, 1, 1, 4, 5, 7]), np.array([1, 1, 1, 0, 1])
    arguments = (
        *runs, np.arange(100, 107, dtype=np.int32), residual, weight, np.float32(EPSILON),
        seat, position, gathered,
    )  # fmt: skip
    run(layers.last_tokens_kernel(width), 5, threads, arguments)
    assert seat.tolist() == [4, -1, 0, -1, 2, 77]
    assert position[[0, 2, 4, 5]].tolist() == [100, 103, 106, 77]
    expected = rms_norm(residual[[0, 3, 6]], weight, EPSILON)
    np.testing.assert_allclose(as_float(gathered[[0, 2, 4]]), expected, rtol=5e-3)
    assert not gathered[[1, 3]].any()
    assert (gathered[5] == 9).all()


@pytest.mark.parametrize(
    ("head_dim", "heads", "kv_heads", "block_size", "position"),
    [(16, 1, 1, 16, 0), (32, 7, 7, 16, 47), (32, 5, 1, 32, 95), (64, 17, 1, 48, 143), (128, 3, 3, 16, 15)],
)
def test_rope_up_to_the_last_position(run, rng, head_dim, heads, kv_heads, block_size, position):
    blocks, per_seat, width = 6, 3, (heads + 2 * kv_heads) * head_dim
    qkv, bias, q_norm, k_norm = (normals(rng, *s) for s in ((3, width), (width,), (head_dim,), (head_dim,)))
    angles = np.outer(np.arange(per_seat * block_size), rng.random(head_dim // 2))
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    table, seats = (
        np.array([2, 1, 0, 3, 4, 5]),
        np.array([1, -1, 0], np.int32),
    )  # the cache's last block is used
    q = np.full((4, heads * head_dim), POISON, np.uint16)
    keys, values = (np.full((blocks, kv_heads, block_size, head_dim), 3, np.uint16) for _ in range(2))
    arguments = (
        qkv, bias, q_norm, k_norm, np.float32(EPSILON), cosines, sines, seats,
        np.full(3, position, np.int32), table, per_seat, q, keys, values,
    )  # fmt: skip
    grid = (-(-(heads + 2 * kv_heads) // layers.ROPE_HEADS), 3)
    run(layers.rope_kernel(head_dim, True, True), grid, (32, layers.ROPE_HEADS), arguments)
    assert not q[1].any()
    assert (q[3] == POISON).all()
    block, within = divmod(position, block_size)
    for row in (0, 2):
        rows = (qkv[row] + bias).reshape(-1, head_dim).astype(np.float64)
        for head in range(heads + kv_heads):
            rows[head] = rms_norm(rows[head], q_norm if head < heads else k_norm, EPSILON)
            rows[head] = rotate(rows[head], cosines[position], sines[position])
        at = (table[seats[row] * per_seat + block], slice(None), within)
        found = np.concatenate([q[row].reshape(heads, head_dim), keys[at], values[at]])
        np.testing.assert_allclose(as_float(found), rows, rtol=1e-2, atol=2e-2)
        keys[at] = values[at] = 3
    assert (keys == 3).all(), "another token's key was written"
    assert (values == 3).all(), "another token's value was written"


@pytest.mark.parametrize("inner", [8, 504, 520])
def test_gate(run, rng, inner):
    gate_up, out = to_bf16(normals(rng, 3, 2 * inner) * 4), np.full((4, inner), 5, np.uint16)
    grid = (-(-inner // 2 // layers.GATE_THREADS), 3)
    run(layers.gate, grid, layers.GATE_THREADS, (gate_up.view(np.uint32), out.view(np.uint32)))
    gates, ups = as_float(gate_up[:, :inner]).astype(np.float64), as_float(gate_up[:, inner:])
    np.testing.assert_allclose(as_float(out[:3]), gates / (1 + np.exp(-gates)) * ups, rtol=1e-2, atol=1e-6)
    assert (out[3] == 5).all()


def filled_cache(rng, head_dim: int, kv_heads: int, block_size: int, lengths: list[int]) -> tuple:
    """Keys, values and table of seats of these lengths: no block to spare, and NaN where no token is."""
    per_seat = -(-max(lengths) // block_size)
    table, used = np.full((len(lengths), per_seat), -1, np.int64), 0
    blocks = sum(-(-length // block_size) for length in lengths)
    shape = (blocks, kv_heads, block_size, head_dim)
    keys, values = np.full(shape, POISON, np.uint16), np.full(shape, POISON, np.uint16)
    for seat, length in enumerate(lengths):
        for first in range(0, length, block_size):
            count = min(block_size, length - first)
            for side in (keys, values):
                side[used, :, :count] = to_bf16(normals(rng, kv_heads, count, head_dim))
            table[seat, first // block_size] = used
            used += 1
    return keys, values, table


def attended(cache: tuple, q: np.ndarray, seat: int, position: int, group: int) -> np.ndarray:
    """Attention of a token's heads to all up to it, in float64."""
    keys, values, table = cache
    _, kv_heads, block_size, head_dim = keys.shape
    blocks = table[seat, : position // block_size + 1]
    sides = [
        as_float(side[blocks]).swapaxes(0, 1).reshape(kv_heads, -1, head_dim)[:, : position + 1]
        for side in (keys, values)
    ]
    heads = enumerate(as_float(q).reshape(-1, head_dim))
    return np.concatenate(
        [expected_attention(each, *(side[head // group] for side in sides)) for head, each in heads]
    )


@pytest.mark.parametrize(
    ("head_dim", "group", "kv_heads", "block_size", "positions"),
    [
        (16, 1, 3, 16, (0, 127, 128)), (16, 64, 1, 32, (31, 129)), (32, 5, 1, 48, (255, 256)),
        (64, 7, 1, 16, (15, 16)), (32, 17, 1, 16, (16, 32)), (128, 3, 1, 32, (30, 31, 32)),
    ],
)  # fmt: skip
def test_decode_attention(run, rng, head_dim, group, kv_heads, block_size, positions):
    cache = filled_cache(rng, head_dim, kv_heads, block_size, [position + 1 for position in positions])
    seats = [0, -1, *range(1, len(positions))]
    at = [positions[0], 1 << 20, *positions[1:]]
    rows, heads, chunks = len(seats), group * kv_heads, max(positions) // 128 + 1
    q = to_bf16(normals(rng, rows, heads * head_dim) * 2)
    out = np.full((rows + 1, heads * head_dim), POISON, np.uint16)
    partial = np.full((rows, heads, chunks, head_dim), np.nan, np.float32)
    stats, arrivals = (
        np.full((rows, heads, chunks, 2), np.nan, np.float32),
        np.zeros((rows, kv_heads), np.int32),
    )
    run(
        attention.decode_kernel(head_dim, group), (2, kv_heads, rows), 32 * -(-group // 16),
        (q.view(np.uint32), cache[0], cache[1], cache[2].reshape(-1), cache[2].shape[1],
         np.array(seats, np.int32), np.array(at, np.int32), partial, stats, arrivals, out),
    )  # fmt: skip
    assert not arrivals.any()
    assert (out[[1, rows]] == POISON).all(), "padding, or what is no row at all, was written"
    for row in (0, *range(2, rows)):
        wanted = attended(cache, q[row], seats[row], at[row], group)
        np.testing.assert_allclose(as_float(out[row]), wanted, atol=0.025)


@pytest.mark.parametrize(
    ("head_dim", "group", "kv_heads", "block_size", "runs"),
    [
        (16, 1, 3, 16, ((0, 1), (127, 2), (15, 1))), (32, 7, 1, 48, ((31, 2), (0, 11))),
        (16, 64, 1, 16, ((15, 2),)), (64, 17, 1, 16, ((0, 4), (31, 1))), (128, 5, 1, 32, ((31, 2),)),
    ],
)  # fmt: skip
def test_prefill_attention(run, rng, head_dim, group, kv_heads, block_size, runs):
    """`runs`: first positions and lengths, an unused run behind the first, padding at the end."""
    cache = filled_cache(rng, head_dim, kv_heads, block_size, [first + length for first, length in runs])
    run_seat = [0, -1, *range(1, len(runs))]
    lengths = [runs[0][1], 0, *(length for _, length in runs[1:])]
    run_start = np.concatenate([[0], np.cumsum(lengths)])
    at = [(seat, first + k) for seat, (first, length) in enumerate(runs) for k in range(length)]
    positions = np.array([position for _, position in at] + [0, 0], np.int32)
    q = to_bf16(normals(rng, len(positions), group * kv_heads * head_dim) * 2)
    out = np.full_like(q, POISON)
    grid = (attention.prefill_tiles(len(positions), len(run_seat), group), kv_heads)
    run(
        attention.prefill_kernel(head_dim, group), grid, 32 * attention.PREFILL_WARPS,
        (q.view(np.uint32), cache[0], cache[1], cache[2].reshape(-1), cache[2].shape[1],
         np.array(run_seat, np.int64), run_start.astype(np.int64), positions, out),
    )  # fmt: skip
    assert (out[len(at) :] == POISON).all()
    for row, (seat, position) in enumerate(at):
        wanted = attended(cache, q[row], seat, position, group)
        np.testing.assert_allclose(as_float(out[row]), wanted, atol=0.025)


@pytest.mark.parametrize(
    ("vocab", "pairs", "ties", "sampling", "eos"),
    [
        (1, 21, False, (OFF, 900_000, 6, 1, 0), (0,)), (2, 3, True, (0, OFF, 0, 1, 1), (0,)),
        (17, 21, True, (700_000, 1, 99, 1, 1), (0, 16, 16)),
        (31, 0, False, (2 * OFF, OFF, 1 << 31, 1, 0), ()),
        (259, 21, False, (OFF, 999_999, 259, 1, 1), (257, 258)), (513, 2, True, (OFF, OFF, 7, 1, 1), (512,)),
        (4097, 5, False, (OFF, 500_000, 0, 1, 1), (4096,)),
    ],
)  # fmt: skip
def test_sampling(run, rng, vocab, pairs, ties, sampling, eos):
    """Padding between two rows; ties, more alternatives and a larger top-k than there are tokens."""
    rows, seats = 3, 4
    logits = normals(rng, rows + 1, vocab) * 3
    logits = np.rint(logits) if ties else logits
    before, words = logits.copy(), np.zeros((seats, SAMPLING_WORDS), np.int64)
    words[:, :6] = *sampling, pairs
    words[:, SEED] = rng.integers(0, 1 << 62, seats)
    row_seat, positions = np.array([3, -1, 1], np.int32), np.array([1 << 20, 0, 0], np.int32)
    out, fault, control = np.full(seats, -7), np.zeros(1, np.int64), np.zeros(16, np.int64)
    records, control[TICKET] = np.full(2 * seats * RECORD_WORDS, -7), 5
    ids = np.array(eos, np.int32)
    arguments = (logits, row_seat, positions, words.reshape(-1), ids, fault, control, out, records)
    run(sample.sample, rows, sample.THREADS, arguments)
    hidden = list(eos) if sampling[4] else []
    for row in (0, 2):
        seat, raw = row_seat[row], before[row].copy()
        logits[row, hidden] = raw[hidden]
        raw[hidden] = -np.inf
        token = int(out[seat])
        assert token == sampled_token(raw, *sampling[:1], sampling[2], sampling[1], int(words[seat, SEED]),
                                      int(positions[row]) + 1)  # fmt: skip
        own = slice(record_at(5, seats, int(seat)), record_at(5, seats, int(seat)) + pairs)
        if pairs:
            record = unpack_records(records[own][None])[0]
            there = min(pairs - 1, vocab)
            check_record(record._replace(likeliest=record.likeliest[:there]), token, before[row], there)
            assert record.likeliest[there:] == [(0, -np.inf)] * (pairs - 1 - there)
        records[own] = -7
    np.testing.assert_array_equal(logits, before)
    assert (fault[0], out[0], out[2]) == (0, -7, -7)
    assert (records == -7).all(), "somebody else's record was written"


@pytest.mark.parametrize(("batch", "seats"), [(1, 1), (129, 131)])
def test_the_end_of_a_step_ahead(run, rng, batch, seats):
    control, step_control, fault = (np.zeros(n, np.int64) for n in (16, 16, 1))
    step_control[TICKET] = 7
    rows, live = rng.permutation(seats), slice(0, batch)
    position, token = rng.integers(0, 99, seats), rng.integers(0, 99, seats)
    following, moved, late = (np.full(n, -1, np.int64) for n in (seats, seats, 2 * seats))
    run(
        ahead.finish_step_ahead, 1, ahead.THREADS,
        (control, fault, step_control, rows, batch, position, token, following, moved, late),
    )  # fmt: skip
    expected, after, kept = np.full(seats, -1), np.full(seats, -1), np.full(2 * seats, -1)
    expected[rows[live]], after[rows[live]] = token[rows[live]], position[rows[live]] + 1
    kept[late_at(7, seats, 0) : late_at(7, seats, 0) + seats] = expected
    np.testing.assert_array_equal(following, expected)
    np.testing.assert_array_equal(moved, after)
    np.testing.assert_array_equal(late, kept)
