"""Weights as the CPU engine computes on them: panels of 32 outputs, in the file's own precision.

A matrix is cut into panels of 32 outputs; within a panel the 32 weights of one input follow
those of the input before, so a panel streams through memory once and the lanes of a vector are
outputs. Each output's sum then runs over the inputs in order, whatever the number of rows it is
computed for: that, and not care in the callers, is why all batches give the same bits.

Blocks of four and eight bits stay what they are (a token of a 135M model reads 110 MB, not
540) and are expanded in registers to exactly the values that dequantization gives.

=======  ========================================================================  ==============
format   a panel                                                                   bytes a weight
=======  ========================================================================  ==============
F32      per input 32 float32                                                      4
BF16     per input 32 bfloat16                                                     2
Q8       per 32 inputs: 32 float32 scales; per input 32 int8                       1.125
Q4       per 32 inputs: 32 scales, 32 minima; per input 16 bytes, output ``j`` in  0.75
         the low half of byte ``j``, output ``j + 16`` in its high half
=======  ========================================================================  ==============
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from blink_numba.engines.cpu.formats import BF16, BLOCK, F32, PANEL, Q4, Q8
from blink_numba.engines.cpu.kernels import Kernels, compiled_kernels
from blink_numba.models import Model, ModelError, StoredTensor, rope_frequencies
from blink_numba.models.model import dequantize

# words of a matrix in the table
FORMAT, OUTPUTS, INPUTS, OFFSET, PANEL_BYTES = range(5)
MATRIX_WORDS = 8

# matrices of a layer, in the table's order
(WQ, WK, WV, WO, WGATE, WUP, WDOWN) = range(7)
LAYER_MATRICES = 7
_LAYER_NAMES = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip

_ALIGNMENT = 64


class Network(NamedTuple):
    """A model as compiled code reads it.

    `matrices` int64[(layers * 7 + 2) * 8]: the table; after the layers' come embedding and head.
    `panels` uint8: all packed matrices. `vectors` float32: per layer input norm, post norm
    [hidden each], Q, K, V biases (zeros without), Q and K head norms (ones without), then the
    final norm; `vector_stride` floats a layer. `cosines`, `sines` float32[positions * head_dim/2].
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    qkv_bias: int
    qk_norm: int
    eps: float
    vector_stride: int
    matrices: np.ndarray
    panels: np.ndarray
    vectors: np.ndarray
    cosines: np.ndarray
    sines: np.ndarray
    eos_ids: np.ndarray
    kernels: Kernels


def panel_bytes(kind: int, inputs: int) -> int:
    """Size of one panel."""
    if kind == F32:
        return inputs * PANEL * 4
    if kind == BF16:
        return inputs * PANEL * 2
    blocks = inputs // BLOCK
    return blocks * (PANEL * 4 + BLOCK * PANEL) if kind == Q8 else blocks * (PANEL * 8 + BLOCK * PANEL // 2)


def build_network(model: Model, positions: int) -> Network:
    """Pack a model's weights.

    Parameters
    ----------
    model : Model
    positions : int
        Longest sequence: rows of the rotary tables.

    Raises
    ------
    ModelError
        When the model is one this engine does not compute.
    """
    config = model.config
    if config.num_experts:
        raise ModelError(f"model {model.name}: the CPU engine computes dense models only, not experts")
    if config.head_dim % 16:
        raise ModelError(
            f"model {model.name}: the engines need a head_dim that is a multiple of 16, not {config.head_dim}"
        )
    names = [f"model.layers.{i}.{name}.weight" for i in range(config.num_layers) for name in _LAYER_NAMES]
    names += ["model.embed_tokens.weight", "lm_head.weight"]
    shapes = config.expected_tensors()
    table = np.zeros((len(names), MATRIX_WORDS), dtype=np.int64)
    at: dict[str, int] = {}
    size = 0
    for row, name in zip(table, names, strict=True):
        stored_name = model.resolve(name)
        outputs, inputs = shapes[stored_name]
        kind = packed_format(model.stored(stored_name))
        if stored_name not in at:
            at[stored_name] = size
            size += -(-outputs // PANEL) * panel_bytes(kind, inputs)
        row[: PANEL_BYTES + 1] = kind, outputs, inputs, at[stored_name], panel_bytes(kind, inputs)
    panels = _aligned_bytes(size)
    for row, name in zip(table, names, strict=True):
        if model.resolve(name) == name:
            pack_matrix(model.stored(name), row, panels)
    angles = np.arange(positions, dtype=np.float64)[:, None] * rope_frequencies(config)
    vectors = _layer_vectors(model)
    return Network(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        layers=config.num_layers,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab=config.vocab_size,
        qkv_bias=int(config.qkv_bias),
        qk_norm=int(config.qk_norm),
        eps=config.rms_norm_eps,
        vector_stride=vectors.shape[1],
        matrices=table.ravel(),
        panels=panels,
        vectors=np.concatenate([vectors.ravel(), model.tensor("model.norm.weight")]),
        cosines=np.cos(angles).astype(np.float32).ravel(),
        sines=np.sin(angles).astype(np.float32).ravel(),
        eos_ids=np.asarray(config.eos_ids, dtype=np.int64),
        kernels=compiled_kernels(),
    )


def _aligned_bytes(size: int) -> np.ndarray:
    raw = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size]


def _layer_vectors(model: Model) -> np.ndarray:
    config = model.config
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def bias(prefix: str, name: str, rows: int) -> np.ndarray:
        return (
            model.tensor(f"{prefix}self_attn.{name}_proj.bias")
            if config.qkv_bias
            else np.zeros(rows, np.float32)
        )

    def head_norm(prefix: str, name: str) -> np.ndarray:
        return (
            model.tensor(f"{prefix}self_attn.{name}_norm.weight")
            if config.qk_norm
            else np.ones(config.head_dim, np.float32)
        )

    layers = []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        parts = [
            model.tensor(prefix + "input_layernorm.weight"),
            model.tensor(prefix + "post_attention_layernorm.weight"),
            bias(prefix, "q", q_rows),
            bias(prefix, "k", kv_rows),
            bias(prefix, "v", kv_rows),
            head_norm(prefix, "q"),
            head_norm(prefix, "k"),
        ]
        layers.append(np.concatenate(parts))
    return np.stack(layers).astype(np.float32)


def packed_format(tensor: StoredTensor) -> int:
    """The packed format that holds a stored one exactly."""
    if tensor.format in ("q4_0", "q4_1"):
        return Q4
    if tensor.format == "q8_0":
        return Q8
    return BF16 if tensor.format == "bf16" else F32


def pack_matrix(tensor: StoredTensor, row: np.ndarray, panels: np.ndarray) -> None:
    """Write a matrix's panels where its row of the table (up to `PANEL_BYTES`) says."""
    kind, outputs, inputs, offset, size = (int(word) for word in row[: PANEL_BYTES + 1])
    count = -(-outputs // PANEL)
    target = panels[offset : offset + count * size]
    if kind == F32:
        target.view(np.float32).reshape(count, inputs, PANEL)[:] = _by_panel(dequantize(tensor), count)
    elif kind == BF16:
        target.view(np.uint16).reshape(count, inputs, PANEL)[:] = _by_panel(tensor.data, count)
    else:
        blocks = inputs // BLOCK
        raw = tensor.data.reshape(outputs, blocks, -1)
        record = target.reshape(count, blocks, size // blocks)
        if kind == Q8:
            _pack_q8(raw, record)
        else:
            _pack_q4(raw, record, has_minimum=tensor.format == "q4_1")


def _by_panel(matrix: np.ndarray, count: int) -> np.ndarray:
    """[outputs, inputs, …] → [panels, inputs, …, 32], outputs padded with zeros."""
    outputs = matrix.shape[0]
    if outputs != count * PANEL:
        padding = [(0, count * PANEL - outputs)] + [(0, 0)] * (matrix.ndim - 1)
        matrix = np.pad(matrix, padding)
    return np.moveaxis(matrix.reshape(count, PANEL, *matrix.shape[1:]), 1, -1)


def _halves(raw: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of every block, as float32[outputs, blocks]."""
    return raw[:, :, at : at + 2].copy().view(np.float16)[:, :, 0].astype(np.float32)


def _pack_q8(raw: np.ndarray, record: np.ndarray) -> None:
    count, scales = record.shape[0], PANEL * 4
    record[:, :, :scales].view(np.float32)[:] = _by_panel(_halves(raw, 0), count)
    codes = record[:, :, scales:].reshape(*record.shape[:2], BLOCK, PANEL)
    codes[:] = _by_panel(raw[:, :, 2:], count)


def _pack_q4(raw: np.ndarray, record: np.ndarray, *, has_minimum: bool) -> None:
    count, scales = record.shape[0], PANEL * 4
    scale = _halves(raw, 0)
    # Q4_0 stores scale · (code - 8): a minimum of -8 scales, exactly
    minimum = _halves(raw, 2) if has_minimum else -8.0 * scale
    record[:, :, :scales].view(np.float32)[:] = _by_panel(scale, count)
    record[:, :, scales : 2 * scales].view(np.float32)[:] = _by_panel(minimum, count)
    packed = raw[:, :, 4 if has_minimum else 2 :]  # byte j holds input j in its low half, input j + 16 above
    by_panel = _by_panel(packed, count)
    first, second = by_panel[..., : PANEL // 2], by_panel[..., PANEL // 2 :]
    codes = record[:, :, 2 * scales :].reshape(*record.shape[:2], 2, BLOCK // 2, PANEL // 2)
    codes[:, :, 0] = (first & 15) | (second << 4)
    codes[:, :, 1] = (first >> 4) | (second & 0xF0)
