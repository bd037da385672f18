"""The Llama family's forward pass written down plainly, in float64: what engines are compared with."""

from __future__ import annotations

import numpy as np

from blink_numba.models import Model, rope_frequencies


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """RMS norm of the last axis."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotary positions: x [tokens, heads, dim], angles [tokens, dim / 2]."""
    first, second = np.split(x, 2, axis=-1)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention; q [tokens, heads, dim], k and v [tokens, kv heads, dim]."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[2])
    scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(axis=-1, keepdims=True), v)


def plain_logits(model: Model, tokens: np.ndarray) -> np.ndarray:
    """Logits [tokens, vocabulary] of a sequence from position 0."""
    config = model.config

    def weight(name: str) -> np.ndarray:
        return model.tensor(name).astype(np.float64)

    def project(x: np.ndarray, name: str) -> np.ndarray:
        y = x @ weight(name + ".weight").T
        return (
            y + weight(name + ".bias")
            if config.qkv_bias and name.endswith(("q_proj", "k_proj", "v_proj"))
            else y
        )

    angles = np.arange(len(tokens))[:, None] * rope_frequencies(config)
    x = weight("model.embed_tokens.weight")[tokens]
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        y = norm(x, weight(prefix + "input_layernorm.weight"), config.rms_norm_eps)
        q, k, v = (
            project(y, f"{prefix}self_attn.{name}_proj").reshape(len(tokens), -1, config.head_dim)
            for name in "qkv"
        )
        if config.qk_norm:
            q = norm(q, weight(prefix + "self_attn.q_norm.weight"), config.rms_norm_eps)
            k = norm(k, weight(prefix + "self_attn.k_norm.weight"), config.rms_norm_eps)
        y = attention(rotate(q, angles), rotate(k, angles), v).reshape(len(tokens), -1)
        x = x + project(y, prefix + "self_attn.o_proj")
        y = norm(x, weight(prefix + "post_attention_layernorm.weight"), config.rms_norm_eps)
        gate, up = project(y, prefix + "mlp.gate_proj"), project(y, prefix + "mlp.up_proj")
        x = x + project(gate / (1 + np.exp(-gate)) * up, prefix + "mlp.down_proj")
    x = norm(x, weight("model.norm.weight"), config.rms_norm_eps)
    return x @ weight("lm_head.weight").T
