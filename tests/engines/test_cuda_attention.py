"""Paged attention, in lockstep and on a GPU: right, and one result for decode and prefill."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba.cuda.dispatcher", reason="needs the numba-cuda target")

from blink_numba.engines.cuda import attention
from blink_numba.engines.cuda.weights import to_bf16
from tests.cuda_reference import as_float
from tests.cuda_reference import attention as expected_attention

BLOCK_SIZE, TABLE, BLOCKS, SEATS = 16, 20, 64, 3
POISON = 0x7FC0  # a bf16 NaN: outputs that nobody wrote, cache that nobody may read


def make_cache(head_dim: int, kv_heads: int, lengths: dict[int, int], seed: int = 3) -> SimpleNamespace:
    """A cache in which the given seats have tokens; everything else in it is NaN."""
    rng = np.random.default_rng(seed)
    shape = (BLOCKS, kv_heads, BLOCK_SIZE, head_dim)
    keys, values = np.full(shape, POISON, np.uint16), np.full(shape, POISON, np.uint16)
    table = np.full((SEATS, TABLE), -1, np.int64)
    free = iter(rng.permutation(BLOCKS))
    for seat, length in lengths.items():
        for position in range(length):
            block, within = divmod(position, BLOCK_SIZE)
            if within == 0:
                table[seat, block] = next(free)
            at = (table[seat, block], slice(None), within)
            keys[at] = to_bf16(rng.standard_normal((kv_heads, head_dim)))
            values[at] = to_bf16(rng.standard_normal((kv_heads, head_dim)))
    return SimpleNamespace(keys=keys, values=values, table=table, flat=table.reshape(-1))


def history(cache, side: str, seat: int, length: int, head: int) -> np.ndarray:
    """Keys or values of a seat's first tokens, float32[length, head_dim]."""
    blocks = cache.table[seat, : -(-length // BLOCK_SIZE)]
    tensor = as_float(getattr(cache, side)[blocks][:, head])
    return tensor.reshape(-1, tensor.shape[-1])[:length]


def expected(cache, q: np.ndarray, seat: int, position: int, group: int, head_dim: int) -> np.ndarray:
    """Attention of one token, all heads, in float64."""
    heads = as_float(q).reshape(-1, head_dim)
    return np.concatenate(
        [
            expected_attention(
                query,
                history(cache, "keys", seat, position + 1, head // group),
                history(cache, "values", seat, position + 1, head // group),
            )
            for head, query in enumerate(heads)
        ]
    )


def decode(run, cache, q, seats, positions, head_dim: int, group: int, splits: int) -> np.ndarray:
    rows, kv_heads = q.shape[0], cache.keys.shape[1]
    out = np.full_like(q, POISON)
    partial = np.full((rows, group * kv_heads, 3, head_dim), np.nan, np.float32)
    stats = np.full((rows, group * kv_heads, 3, 2), np.nan, np.float32)
    arrivals = np.zeros((rows, kv_heads), np.int32)
    run(
        attention.decode_kernel(head_dim, group),
        (splits, kv_heads, rows),
        32 * -(-group // 16),
        (q.view(np.uint32), cache.keys, cache.values, cache.flat, TABLE,
         np.array(seats, np.int32), np.array(positions, np.int32), partial, stats, arrivals, out),
    )  # fmt: skip
    assert not arrivals.any(), "the counters must be zero for the next step"
    return out


def prefill(run, cache, q, run_seat, run_start, positions, head_dim: int, group: int) -> np.ndarray:
    out = np.full_like(q, POISON)
    tiles = attention.prefill_tiles(q.shape[0], len(run_seat), group)
    run(
        attention.prefill_kernel(head_dim, group),
        (tiles, cache.keys.shape[1]),
        32 * attention.PREFILL_WARPS,
        (q.view(np.uint32), cache.keys, cache.values, cache.flat, TABLE,
         np.array(run_seat, np.int64), np.array(run_start, np.int64), np.array(positions, np.int32), out),
    )  # fmt: skip
    return out


@pytest.mark.parametrize(
    ("head_dim", "group", "kv_heads"), [(16, 2, 2), (64, 3, 1), (128, 4, 1), (16, 20, 1)]
)
def test_decode_is_right_whatever_the_split(run, head_dim, group, kv_heads):
    cache = make_cache(head_dim, kv_heads, {2: 301, 0: 38})
    q = to_bf16(np.random.default_rng(5).standard_normal((3, group * kv_heads * head_dim)) * 2)
    once = decode(run, cache, q, (2, -1, 0), (300, 9, 37), head_dim, group, 1)
    for row, seat, position in ((0, 2, 300), (2, 0, 37)):
        wanted = expected(cache, q[row], seat, position, group, head_dim)
        np.testing.assert_allclose(as_float(once[row]), wanted, atol=0.02)
    assert (once[1] == POISON).all(), "a padding row was written"
    np.testing.assert_array_equal(once, decode(run, cache, q, (2, -1, 0), (300, 9, 37), head_dim, group, 2))


@pytest.mark.parametrize(("head_dim", "group", "kv_heads"), [(16, 2, 2), (64, 3, 1), (16, 20, 1)])
def test_packed_prefill_is_right_and_equals_decode_bit_for_bit(run, head_dim, group, kv_heads):
    cache = make_cache(head_dim, kv_heads, {2: 301, 0: 38})
    positions = [*range(280, 301), *range(38), 0, 0, 0, 0, 0]
    q = to_bf16(np.random.default_rng(6).standard_normal((64, group * kv_heads * head_dim)) * 2)
    out = prefill(run, cache, q, (2, -1, 0), (0, 21, 21, 59), positions, head_dim, group)
    for row in range(59):
        wanted = expected(cache, q[row], 2 if row < 21 else 0, positions[row], group, head_dim)
        np.testing.assert_allclose(as_float(out[row]), wanted, atol=0.02)
    assert (out[59:] == POISON).all(), "tokens of no run were written"
    rows = np.ascontiguousarray(q[[20, 58]])
    np.testing.assert_array_equal(
        decode(run, cache, rows, (2, 0), (300, 37), head_dim, group, 2), out[[20, 58]]
    )
