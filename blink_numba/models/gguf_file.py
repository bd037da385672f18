"""Models in a GGUF file: its names, its layout and its metadata turned into Hugging Face's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from blink_numba.models.config import ModelConfig
from blink_numba.models.errors import ModelError
from blink_numba.models.model import Model, StoredTensor, dequantize

_ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}

# per-layer tensors: Hugging Face's name → GGUF's
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


class GgufModel(Model):
    """A model read from one GGUF file, memory-mapped."""

    def __init__(self, path: Path) -> None:
        reader = _open(path)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        config = _read_config(
            path, reader, tied="output.weight" not in self._tensors, scaling=self._rope_factors()
        )
        super().__init__(path.name, config, path)
        stored_as = {name: _gguf_name(name) for name in config.expected_tensors()}
        self._stored_as = {name: at for name, at in stored_as.items() if at[0] in self._tensors}
        self.check_tensors({name: self._shape(name) for name in self._stored_as})

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._stored_as)

    def stored(self, name: str) -> StoredTensor:
        if name not in self._stored_as:
            raise ModelError(f"model {self.name} has no tensor {name}")
        gguf_name, expert = self._stored_as[name]
        tensor = self._tensors[gguf_name]
        data = tensor.data if expert is None else tensor.data[expert]
        if self.config.architecture == "llama" and ".self_attn.q_proj." in name:
            data = _unpermute(data, self.config.num_heads)
        if self.config.architecture == "llama" and ".self_attn.k_proj." in name:
            data = _unpermute(data, self.config.num_kv_heads)
        kind = tensor.tensor_type.name.lower()
        if kind == "bf16":
            data = data.view(np.uint16)
        return StoredTensor(kind, self._shape(name), data)

    def _shape(self, name: str) -> tuple[int, ...]:
        gguf_name, expert = self._stored_as[name]
        shape = tuple(int(size) for size in reversed(self._tensors[gguf_name].shape))
        return shape if expert is None else shape[1:]

    def _rope_factors(self) -> dict[str, Any] | None:
        """Llama 3's scaling, which GGUF stores as one divisor per frequency."""
        tensor = self._tensors.get("rope_freqs.weight")
        if tensor is None:
            return None
        factors = dequantize(
            StoredTensor(tensor.tensor_type.name.lower(), (int(tensor.n_elements),), tensor.data)
        )
        return {"rope_type": "factors", "factors": tuple(float(factor) for factor in factors)}


def _open(path: Path):
    import gguf

    try:
        return gguf.GGUFReader(path)
    except Exception as error:  # the library lets whatever its parsing meets escape
        raise ModelError(
            f"{path} is not a complete GGUF file ({type(error).__name__}: {error}); "
            "it may be half written: delete it and fetch it again"
        ) from error


def _read_config(path: Path, reader, *, tied: bool, scaling: dict[str, Any] | None) -> ModelConfig:
    def field(key: str, default: Any = None) -> Any:
        found = reader.get_field(key)
        return default if found is None else found.contents()

    family = field("general.architecture")
    if family not in _ARCHITECTURES:
        raise ModelError(
            f"{path.name}: GGUF architecture {family!r} is not supported; "
            f"supported are {', '.join(_ARCHITECTURES)}"
        )

    def needed(key: str) -> Any:
        value = field(f"{family}.{key}")
        if value is None:
            raise ModelError(f"{path.name}: metadata {family}.{key} is missing")
        return value

    kind = field(f"{family}.rope.scaling.type")
    if kind == "linear":
        scaling = {"rope_type": "linear", "factor": float(needed("rope.scaling.factor"))}
    elif kind not in (None, "none"):
        raise ModelError(f"{path.name}: rotary scaling {kind!r} is not supported")
    heads, hidden = int(needed("attention.head_count")), int(needed("embedding_length"))
    head_dim = int(field(f"{family}.attention.key_length") or hidden // heads)
    if int(field(f"{family}.rope.dimension_count") or head_dim) != head_dim:
        raise ModelError(f"{path.name}: rotary positions on a part of the head are not supported")
    eos = field("tokenizer.ggml.eos_token_id")
    eot = field("tokenizer.ggml.eot_token_id")
    vocab = reader.get_field("tokenizer.ggml.tokens")
    moe = family == "qwen3moe"
    positions = int(needed("context_length"))
    # as far as a window sees everything, full attention is right
    window = int(field(f"{family}.attention.sliding_window") or 0)
    return ModelConfig(
        architecture=_ARCHITECTURES[family],
        vocab_size=int(field(f"{family}.vocab_size") or (len(vocab.data) if vocab else 0)),
        hidden_size=hidden,
        intermediate_size=int(needed("feed_forward_length")),
        num_layers=int(needed("block_count")),
        num_heads=heads,
        num_kv_heads=int(field(f"{family}.attention.head_count_kv") or heads),
        head_dim=head_dim,
        rope_theta=float(field(f"{family}.rope.freq_base", 10000.0)),
        rope_scaling=scaling,
        rms_norm_eps=float(needed("attention.layer_norm_rms_epsilon")),
        tie_word_embeddings=tied,
        qkv_bias=family == "qwen2",
        qk_norm=family in ("qwen3", "qwen3moe"),
        max_position=min(positions, window) if window else positions,
        bos_id=field("tokenizer.ggml.bos_token_id"),
        eos_ids=tuple(sorted({int(token) for token in (eos, eot) if token is not None})),
        num_experts=int(needed("expert_count")) if moe else 0,
        experts_per_token=int(needed("expert_used_count")) if moe else 0,
        moe_intermediate_size=int(needed("expert_feed_forward_length")) if moe else 0,
        norm_topk_prob=moe,
    )


def _gguf_name(name: str) -> tuple[str, int | None]:
    """GGUF's tensor for one of Hugging Face's names, and which expert of it."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name], None
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    if stem.startswith("mlp.experts."):
        _, _, expert, projection = stem.split(".")
        return f"blk.{layer}.{_LAYER_NAMES['mlp.' + projection]}_exps.{kind}", int(expert)
    return f"blk.{layer}.{_LAYER_NAMES[stem]}.{kind}", None


def _unpermute(data: np.ndarray, heads: int) -> np.ndarray:
    """Undo GGUF's interleaving of the two rotary halves of each head's rows.

    Rows only move, so it holds for block formats, whose blocks lie within a row, as well.
    """
    rows, columns = data.shape
    return data.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
