"""Embedding, norms, rotary positions and gating, in lockstep and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba.cuda.dispatcher", reason="needs the numba-cuda target")

from blink_numba.engines.cuda import layers
from blink_numba.engines.cuda.weights import to_bf16
from blink_numba.engines.sampling import FAULT_INPUT
from tests.cuda_reference import as_float, rms_norm, rotate

RNG = np.random.default_rng(2)
EPSILON = np.float32(1e-5)


def test_embedding_of_a_decode_batch(run):
    table = to_bf16(RNG.standard_normal((10, 24)))
    tokens, positions = np.array([3, 99, 7, 1], np.int64), np.array([5, 0, 200, 6], np.int64)
    seats, rows_at = np.full(4, 77, np.int32), np.full(4, 77, np.int32)
    residual, fault = np.full((4, 24), np.nan, np.float32), np.zeros(1, np.int64)
    arguments = (
        np.array([3, -1, 0], np.int64),
        tokens,
        positions,
        table,
        100,
        fault,
        seats,
        rows_at,
        residual,
    )
    run(layers.embed_decode, 3, layers.EMBED_THREADS, arguments)
    np.testing.assert_array_equal(residual[[0, 2]], as_float(table)[[1, 3]])
    assert not residual[1].any()
    assert seats[:3].tolist() == [3, -1, 0]
    assert rows_at[[0, 2]].tolist() == [6, 5]
    assert fault[0] == 0


@pytest.mark.parametrize(("seat", "why"), [(1, "token past the vocabulary"), (2, "position past the tables")])
def test_input_out_of_range_is_a_fault_and_not_a_wild_read(run, seat, why):
    table = to_bf16(RNG.standard_normal((10, 24)))
    tokens, positions = np.array([3, 10, 7], np.int64), np.array([5, 0, 100], np.int64)
    seats, rows_at = np.full(1, 77, np.int32), np.full(1, 77, np.int32)
    residual, fault = np.full((1, 24), np.nan, np.float32), np.zeros(1, np.int64)
    arguments = (np.array([seat], np.int64), tokens, positions, table, 100, fault, seats, rows_at, residual)
    run(layers.embed_decode, 1, layers.EMBED_THREADS, arguments)
    assert (fault[0], seats[0]) == (FAULT_INPUT, -1), why
    assert not residual.any()


def test_norm_of_rows_wider_and_narrower_than_a_block(run):
    for width in (24, 600, 2056):
        residual = RNG.standard_normal((2, width)).astype(np.float32) * 3
        weight, out = RNG.standard_normal(width).astype(np.float32), np.zeros((2, width), np.uint16)
        run(layers.norm_kernel(width), 2, layers.norm_threads(width), (residual, weight, EPSILON, out))
        np.testing.assert_allclose(as_float(out), rms_norm(residual, weight, EPSILON), rtol=5e-3)


def test_only_runs_that_end_their_prompt_are_sampled(run):
    residual = RNG.standard_normal((8, 32)).astype(np.float32)
    weight = np.ones(32, np.float32)
    positions = np.arange(100, 108, dtype=np.int32)
    seat, position = np.full(3, 77, np.int32), np.full(3, 77, np.int32)
    out = np.full((3, 32), 0x7FC0, np.uint16)
    runs = (np.array([4, 9, -1], np.int64), np.array([0, 3, 7, 7], np.int64), np.array([1, 0, 1], np.int64))
    arguments = (*runs, positions, residual, weight, EPSILON, seat, position, out)
    run(layers.last_tokens_kernel(32), 3, layers.norm_threads(32), arguments)
    assert seat.tolist() == [4, -1, -1]
    assert position[0] == 102
    np.testing.assert_allclose(as_float(out[0]), rms_norm(residual[2], weight, EPSILON), rtol=5e-3)
    assert not out[1:].any()


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize(("biased", "normed"), [(False, False), (True, False), (False, True)])
def test_rope_finishes_heads_and_fills_the_cache(run, head_dim, biased, normed):
    heads, kv_heads, block_size, per_seat = 3, 1, 4, 3
    width = (heads + 2 * kv_heads) * head_dim
    qkv, bias = (RNG.standard_normal(shape).astype(np.float32) for shape in ((2, width), width))
    q_norm, k_norm = (RNG.standard_normal(head_dim).astype(np.float32) for _ in range(2))
    angles = np.outer(np.arange(12), RNG.random(head_dim // 2))
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    table = np.array([5, 6, 7, 2, 1, 0], np.int64)  # of seats 0 and 1
    q = np.full((2, heads * head_dim), 0x7FC0, np.uint16)
    keys, values = (np.zeros((8, kv_heads, block_size, head_dim), np.uint16) for _ in range(2))
    kernel = layers.rope_kernel(head_dim, biased, normed)
    arguments = (
        qkv, bias if biased else np.zeros(1, np.float32), q_norm, k_norm, EPSILON, cosines, sines,
        np.array([1, -1], np.int32), np.array([6, 3], np.int32), table, per_seat, q, keys, values,
    )  # fmt: skip
    run(kernel, (-(-(heads + 2) // layers.ROPE_HEADS), 2), (32, layers.ROPE_HEADS), arguments)

    finished = (qkv[0] + bias if biased else qkv[0]).reshape(-1, head_dim).astype(np.float64)
    for head in range(heads + kv_heads):
        if normed:
            finished[head] = rms_norm(finished[head], q_norm if head < heads else k_norm, EPSILON)
        finished[head] = rotate(finished[head], cosines[6], sines[6])
    close = {"rtol": 1e-2, "atol": 1e-2}
    np.testing.assert_allclose(as_float(q[0]), finished[:heads].reshape(-1), **close)
    np.testing.assert_allclose(
        as_float(keys[1, 0, 2]), finished[heads], **close
    )  # position 6: block 1, place 2
    np.testing.assert_allclose(as_float(values[1, 0, 2]), finished[heads + 1], **close)
    assert not q[1].any()
    assert np.count_nonzero(keys.any(-1)) == 1, "only the token's own place may be written"


def test_gate(run):
    gate_up = to_bf16(RNG.standard_normal((2, 2 * 40)) * 4)
    out = np.zeros((2, 40), np.uint16)
    run(layers.gate, (1, 2), layers.GATE_THREADS, (gate_up.view(np.uint32), out.view(np.uint32)))
    gates, ups = as_float(gate_up[:, :40]).astype(np.float64), as_float(gate_up[:, 40:])
    np.testing.assert_allclose(as_float(out), gates / (1 + np.exp(-gates)) * ups, rtol=1e-2, atol=1e-6)
