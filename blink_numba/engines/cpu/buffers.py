"""The memory of a CPU engine: KV cache, activations, and what each thread has of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from blink_numba.engines.cpu.attention import CHUNK
from blink_numba.engines.cpu.formats import F32, PANEL
from blink_numba.engines.cpu.matmul import MAX_TILE_ROWS
from blink_numba.engines.cpu.sample import BUCKETS
from blink_numba.engines.cpu.weights import Network, panel_bytes
from graphs.step_io import EngineSpec


class KVCache(NamedTuple):
    """Paged keys and values; layout in `attention`. `stride`: scores a head has room for."""

    keys: np.ndarray
    values: np.ndarray
    blocks: int
    kv_heads: int
    block_size: int
    stride: int


class Activations(NamedTuple):
    """What the threads share. Rows are the step's tokens.

    `row_token`, `row_position`, `row_seat`, and of the rows that are sampled from `sample_row`,
    `sample_seat`: int64. `hidden` float32[rows * hidden]: the residual stream. `normed`,
    `attended`, `gated`: packed tiles. `qkv` float32[rows * qkv_stride]: Q, K, V of a row, each
    padded to whole panels. `logits` float32[samples * logit_stride].
    """

    row_token: np.ndarray
    row_position: np.ndarray
    row_seat: np.ndarray
    sample_row: np.ndarray
    sample_seat: np.ndarray
    hidden: np.ndarray
    normed: np.ndarray
    qkv: np.ndarray
    attended: np.ndarray
    gated: np.ndarray
    logits: np.ndarray
    k_column: int
    v_column: int
    qkv_stride: int
    logit_stride: int


class Scratch(NamedTuple):
    """What a thread has of its own.

    `member`: its number in the team. `tiles`: one packed tile of normed rows, or all sampled rows.
    `product`, `other_product` float32[12 * 32]: results of a panel. `panel`, `other_panel` uint8:
    expanded panels. `scores`: of attention. `weights`, `histogram` int64,
    `work` float32: of sampling.
    """

    member: int
    tiles: np.ndarray
    product: np.ndarray
    other_product: np.ndarray
    panel: np.ndarray
    other_panel: np.ndarray
    scores: np.ndarray
    weights: np.ndarray
    work: np.ndarray
    histogram: np.ndarray


def whole_panels(count: int) -> int:
    """`count` rounded up to whole panels."""
    return -(-count // PANEL) * PANEL


def make_cache(network: Network, spec: EngineSpec) -> KVCache:
    """A cache of zeros; the system gives its memory as it is first written."""
    size = network.layers * spec.blocks * spec.block_size * network.kv_heads * network.head_dim
    stride = -(-spec.blocks_per_seat * spec.block_size // CHUNK) * CHUNK
    zeros = np.zeros(size, np.float32), np.zeros(size, np.float32)
    return KVCache(*zeros, spec.blocks, network.kv_heads, spec.block_size, stride)


def make_activations(network: Network, spec: EngineSpec) -> Activations:
    """Shared activations for the largest step."""
    rows = max(spec.seats, spec.prefill_tokens[-1])
    samples = max(spec.seats, spec.prefill_sequences)
    packed = rows + MAX_TILE_ROWS
    q_rows, kv_rows = network.heads * network.head_dim, network.kv_heads * network.head_dim
    k_column = whole_panels(q_rows)
    v_column = k_column + whole_panels(kv_rows)
    qkv_stride, logit_stride = v_column + whole_panels(kv_rows), whole_panels(network.vocab)

    def floats(count: int) -> np.ndarray:
        return np.zeros(count, np.float32)

    return Activations(
        row_token=np.zeros(rows, np.int64),
        row_position=np.zeros(rows, np.int64),
        row_seat=np.zeros(rows, np.int64),
        sample_row=np.zeros(samples, np.int64),
        sample_seat=np.zeros(samples, np.int64),
        hidden=floats(rows * network.hidden),
        normed=floats(packed * network.hidden),
        qkv=floats(rows * qkv_stride),
        attended=floats(packed * q_rows),
        gated=floats(packed * network.intermediate),
        logits=floats(samples * logit_stride),
        k_column=k_column,
        v_column=v_column,
        qkv_stride=qkv_stride,
        logit_stride=logit_stride,
    )


def make_scratch(network: Network, spec: EngineSpec, member: int) -> Scratch:
    """Scratch memory of team member number `member`."""
    samples = max(spec.seats, spec.prefill_sequences)
    longest = max(network.hidden, network.intermediate, network.heads * network.head_dim)
    stride = -(-spec.blocks_per_seat * spec.block_size // CHUNK) * CHUNK
    group = network.heads // network.kv_heads
    product = MAX_TILE_ROWS * PANEL
    return Scratch(
        member=member,
        tiles=np.zeros((samples + MAX_TILE_ROWS) * network.hidden, np.float32),
        product=np.zeros(product, np.float32),
        other_product=np.zeros(product, np.float32),
        panel=np.zeros(panel_bytes(F32, longest), np.uint8),
        other_panel=np.zeros(panel_bytes(F32, network.hidden), np.uint8),
        scores=np.zeros(group * stride + network.head_dim, np.float32),
        weights=np.zeros(whole_panels(network.vocab), np.int64),
        work=np.zeros(whole_panels(network.vocab) + len(network.eos_ids), np.float32),
        histogram=np.zeros(BUCKETS, np.int64),
    )
