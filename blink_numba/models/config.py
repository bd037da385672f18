"""What a model is made of: its shape, its positions' frequencies, the tensors it must have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blink_numba.models.errors import ModelError

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3_moe")

# Hugging Face `model_type` → the architecture it is computed as
_MODEL_TYPES = {
    "llama": "llama",
    "mistral": "llama",
    "phi3": "llama",  # the same forward, with fused projections that the loader splits
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3_moe",
}
_SUPPORTED = f"supported are {', '.join(_MODEL_TYPES)}"


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder of the Llama family.

    Attributes
    ----------
    architecture : str
        One of `ARCHITECTURES`: what is computed. ``qwen2`` adds biases to Q, K, V; ``qwen3``
        normalises each head of Q and K; ``qwen3_moe`` is qwen3 with routed experts.
    vocab_size, hidden_size, intermediate_size, num_layers : int
    num_heads, num_kv_heads, head_dim : int
        Query heads share key/value heads in groups of ``num_heads // num_kv_heads``.
    rope_theta : float
    rope_scaling : dict or None
        ``{"rope_type": "llama3" | "linear" | "factors", …}`` as `rope_frequencies` reads it.
    rms_norm_eps : float
    tie_word_embeddings, qkv_bias, qk_norm : bool
    max_position : int
        Longest sequence the model was made for, in tokens.
    bos_id : int or None
    eos_ids : tuple of int
    num_experts, experts_per_token, moe_intermediate_size : int
        Zero for dense models.
    norm_topk_prob : bool
        Whether the weights of the chosen experts are rescaled to sum to one.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    max_position: int = 2048
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    norm_topk_prob: bool = False

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise ModelError(f"architecture {self.architecture!r} is not supported; {_SUPPORTED}")
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ModelError(f"model configuration: {name} must be positive, got {getattr(self, name)}")
        if self.intermediate_size < 1 and not self.num_experts:
            raise ModelError(
                f"model configuration: intermediate_size must be positive, got {self.intermediate_size}"
            )
        if self.max_position < 2:
            raise ModelError(
                f"model configuration: max_position is {self.max_position}; a prompt and an answer need 2"
            )
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"{self.num_heads} query heads cannot share {self.num_kv_heads} key/value heads")
        if self.head_dim % 2:
            raise ModelError(f"head_dim must be even for rotary positions, got {self.head_dim}")
        if any(not 0 <= token < self.vocab_size for token in self.eos_ids):
            raise ModelError(f"EOS ids {self.eos_ids} are outside the vocabulary of {self.vocab_size}")

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name (Hugging Face's) → shape of every tensor a forward pass reads."""
        hidden, vocab = self.hidden_size, self.vocab_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}."
            shapes[prefix + "input_layernorm.weight"] = (hidden,)
            shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
            shapes.update({prefix + name: shape for name, shape in self._attention_shapes().items()})
            shapes.update({prefix + name: shape for name, shape in self._mlp_shapes().items()})
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (vocab, hidden)
        return shapes

    def _attention_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        q_rows, kv_rows = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {}
        for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            shapes[f"self_attn.{name}_proj.weight"] = (rows, hidden)
            if self.qkv_bias:
                shapes[f"self_attn.{name}_proj.bias"] = (rows,)
        shapes["self_attn.o_proj.weight"] = (hidden, q_rows)
        if self.qk_norm:
            shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (self.head_dim,)
        return shapes

    def _mlp_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        if not self.num_experts:
            return _gated_mlp("mlp.", hidden, self.intermediate_size)
        shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (self.num_experts, hidden)}
        for expert in range(self.num_experts):
            shapes.update(_gated_mlp(f"mlp.experts.{expert}.", hidden, self.moe_intermediate_size))
        return shapes


def _gated_mlp(prefix: str, hidden: int, intermediate: int) -> dict[str, tuple[int, ...]]:
    return {
        prefix + "gate_proj.weight": (intermediate, hidden),
        prefix + "up_proj.weight": (intermediate, hidden),
        prefix + "down_proj.weight": (hidden, intermediate),
    }


def rope_frequencies(config: ModelConfig) -> np.ndarray:
    """Angle per position of each pair of a head's dimensions.

    Returns
    -------
    float64[head_dim / 2]
        Dimension ``i`` is rotated with dimension ``i + head_dim / 2`` by position times this.

    Raises
    ------
    ModelError
        When the scaling is of a kind that is not computed here.
    """
    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-np.arange(half, dtype=np.float64) / half)
    scaling = config.rope_scaling
    if not scaling:
        return frequencies
    kind = scaling.get("rope_type", "default")
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / float(scaling["factor"])
    if kind == "factors":
        return frequencies / np.asarray(scaling["factors"], dtype=np.float64)
    if kind == "llama3":
        return _llama3_frequencies(frequencies, scaling)
    raise ModelError(f"rotary scaling {kind!r} is not supported; supported are default, linear, llama3")


def _llama3_frequencies(frequencies: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    """Long wavelengths stretched by `factor`, short ones kept, a ramp between (Llama 3.1)."""
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(scaling["original_max_position_embeddings"]) * frequencies / (2.0 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / factor)


def config_from_huggingface(
    raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None
) -> ModelConfig:
    """`ModelConfig` of a parsed ``config.json`` (and ``generation_config.json``, for the EOS ids)."""
    model_type = raw.get("model_type")
    if model_type not in _MODEL_TYPES:
        raise ModelError(f"model_type {model_type!r} is not supported; {_SUPPORTED}")
    architecture = _MODEL_TYPES[model_type]
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = float(rope.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0)
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type", "default")
    if float(raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelError("rotary positions on a part of the head (partial_rotary_factor) are not supported")
    if raw.get("use_sliding_window"):
        raise ModelError("sliding-window attention (use_sliding_window) is not supported")
    activation = raw.get("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        raise ModelError(f"hidden_act {activation!r} is not supported; the gate is silu")
    eos = (generation or {}).get("eos_token_id", raw.get("eos_token_id"))
    try:
        heads = int(raw["num_attention_heads"])
        config = ModelConfig(
            architecture=architecture,
            vocab_size=int(raw["vocab_size"]),
            hidden_size=int(raw["hidden_size"]),
            intermediate_size=int(raw.get("intermediate_size") or 0),
            num_layers=int(raw["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
            rope_theta=theta,
            rope_scaling=None if rope["rope_type"] == "default" else rope,
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=architecture == "qwen2" or bool(raw.get("attention_bias", False)),
            qk_norm=architecture in ("qwen3", "qwen3_moe"),
            max_position=_positions(raw),
            bos_id=raw.get("bos_token_id"),
            eos_ids=_id_tuple(eos),
            num_experts=int(raw.get("num_experts") or 0) if architecture == "qwen3_moe" else 0,
            experts_per_token=int(raw.get("num_experts_per_tok") or 0),
            moe_intermediate_size=int(raw.get("moe_intermediate_size") or 0),
            norm_topk_prob=bool(raw.get("norm_topk_prob", False)),
        )
    except KeyError as missing:
        raise ModelError(f"config.json lacks {missing}") from missing
    rope_frequencies(config)  # an unknown scaling must fail here, not at the first token
    return config


def _positions(raw: Mapping[str, Any]) -> int:
    """Longest sequence of a model; where attention has a window, as far as the window sees all of it."""
    positions = int(raw.get("max_position_embeddings", 2048))
    windowed = raw["model_type"] in ("mistral", "phi3") and raw.get("sliding_window")
    return min(positions, int(raw["sliding_window"])) if windowed else positions


def _id_tuple(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, (list, tuple)) else (int(value),)
