"""Weights on the device: bf16 matrices, fused where they are read together, float32 norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blink_numba.engines.cuda import ptx
from blink_numba.engines.cuda._cuda import cuda, types
from blink_numba.models import Model, SyntheticModel

# Synthetic models above this many weights are drawn on the device: NumPy would take minutes.
HOST_DRAWN_WEIGHTS = 1 << 26
_FILL_THREADS, _FILL_BLOCKS = 256, 1024
_DUMMY_SCALE = 0.02


@dataclass
class LayerWeights:
    """One layer; matrices uint16 (bf16) [out, in], vectors float32.

    `qkv` holds the rows of Q, K and V; `gate_up` those of gate and up. `bias`, `q_norm`, `k_norm`
    are one-element stand-ins where the architecture has none.
    """

    input_norm: Any
    qkv: Any
    bias: Any
    q_norm: Any
    k_norm: Any
    output: Any
    post_norm: Any
    gate_up: Any
    down: Any


@dataclass
class DeviceWeights:
    """All weights; `lm_head` is `embedding` itself where they are tied."""

    embedding: Any
    layers: list[LayerWeights]
    final_norm: Any
    lm_head: Any

    def bytes_read_per_step(self) -> int:
        """Bytes of weights that a decode step reads: all but the embedding's unused rows."""
        layers = sum(int(array.nbytes) for layer in self.layers for array in vars(layer).values())
        return layers + int(self.lm_head.nbytes) + int(self.final_norm.nbytes)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Nearest bf16 (ties to even) of finite float32 values, as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


@cuda.jit
def fill_random(out, seed, scale):
    """Fill uint16[n] with bf16 of a symmetric random distribution of standard deviation `scale`."""
    index = cuda.grid(1)
    step = cuda.gridsize(1)
    while index < out.shape[0]:
        mixed = types.uint64(index) + types.uint64(seed) * types.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> types.uint64(30))) * types.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> types.uint64(27))) * types.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> types.uint64(31)
        total = types.int32(0)  # four uniform 16-bit numbers: variance 4 · 2^32 / 12
        for part in range(4):
            uniform = types.int32((mixed >> types.uint64(16 * part)) & types.uint64(0xFFFF))
            total += uniform - types.int32(32768)
        value = types.float32(total) * types.float32(scale / 37837.0)
        out[index] = types.uint16(ptx.pack_bf16(value, types.float32(0.0)) & types.uint32(0xFFFF))
        index += step


class _Loader:
    """Brings a model's tensors to the device, by name."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._shapes = model.config.expected_tensors()
        count = sum(int(np.prod(shape)) for shape in self._shapes.values())
        self._on_device = isinstance(model, SyntheticModel) and count > HOST_DRAWN_WEIGHTS
        self._drawn = 0

    def matrix(self, *names: str) -> Any:
        """bf16 matrix of the named ones' rows, one after the other."""
        shapes = [self._shapes[self._model.resolve(name)] for name in names]
        fused = cuda.device_array((sum(shape[0] for shape in shapes), shapes[0][1]), np.uint16)
        if self._on_device:
            self._drawn += 1
            fill_random[_FILL_BLOCKS, _FILL_THREADS](fused.reshape(fused.size), self._drawn, _DUMMY_SCALE)
            return fused
        at = 0
        for name, shape in zip(names, shapes, strict=True):
            fused[at : at + shape[0]].copy_to_device(self._host_matrix(name))
            at += shape[0]
        return fused

    def _host_matrix(self, name: str) -> np.ndarray:
        stored = self._model.stored(self._model.resolve(name))
        if stored.format == "bf16":
            return np.ascontiguousarray(stored.data).reshape(stored.shape)
        return to_bf16(self._model.tensor(name))

    def vector(self, *names: str) -> Any:
        """float32 vector of the named ones, one after the other; one zero without names."""
        if not names:
            return cuda.to_device(np.zeros(1, np.float32))
        if self._on_device:
            parts: Sequence[np.ndarray] = [
                np.full(self._shapes[name], 1.0 if name.endswith("norm.weight") else 0.0, np.float32)
                for name in names
            ]
        else:
            parts = [self._model.tensor(name).reshape(-1) for name in names]
        return cuda.to_device(np.concatenate(parts).astype(np.float32))


def load_weights(model: Model) -> DeviceWeights:
    """Copy a model's weights to the current device, as bf16.

    Large synthetic models are drawn on the device; their values differ from the host's.
    """
    load, config = _Loader(model), model.config
    embedding = load.matrix("model.embed_tokens.weight")
    layers = []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        attention = prefix + "self_attn."
        projections = [f"{attention}{name}_proj" for name in "qkv"]
        layers.append(
            LayerWeights(
                input_norm=load.vector(prefix + "input_layernorm.weight"),
                qkv=load.matrix(*(name + ".weight" for name in projections)),
                bias=load.vector(*(name + ".bias" for name in projections if config.qkv_bias)),
                q_norm=load.vector(*([attention + "q_norm.weight"] if config.qk_norm else [])),
                k_norm=load.vector(*([attention + "k_norm.weight"] if config.qk_norm else [])),
                output=load.matrix(attention + "o_proj.weight"),
                post_norm=load.vector(prefix + "post_attention_layernorm.weight"),
                gate_up=load.matrix(prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight"),
                down=load.matrix(prefix + "mlp.down_proj.weight"),
            )
        )
    final_norm = load.vector("model.norm.weight")
    lm_head = embedding if config.tie_word_embeddings else load.matrix("lm_head.weight")
    cuda.synchronize()
    return DeviceWeights(embedding, layers, final_norm, lm_head)
