"""What the CUDA kernels compute, in NumPy and float64: the oracle with and without a GPU."""

from __future__ import annotations

import numpy as np

from blink_numba.engines.cuda.weights import to_bf16
from blink_numba.engines.sampling import ONE_WEIGHT, random_bits, share_of, target_weight
from blink_numba.models import rope_frequencies


def as_float(bits: np.ndarray) -> np.ndarray:
    """float32 values of bf16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """One query head [d] over keys and values [n, d], scale 1 / sqrt(d)."""
    scores = keys.astype(np.float64) @ q.astype(np.float64) / np.sqrt(len(q))
    weights = np.exp(scores - scores.max())
    return (weights / weights.sum()) @ values.astype(np.float64)


def rms_norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    """Root-mean-square norm of the last axis."""
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotate(x: np.ndarray, cosines: np.ndarray, sines: np.ndarray) -> np.ndarray:
    """Rotary positions on a head [d]: dimension i with i + d / 2."""
    half = len(x) // 2
    low, high = x[:half].astype(np.float64), x[half:].astype(np.float64)
    return np.concatenate([low * cosines - high * sines, high * cosines + low * sines])


def weights_of(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Integer sampling weights of a row, by the definition in `blink_numba.engines.sampling`."""
    distance = (logits.astype(np.float64) - logits.max()) / temperature
    return np.rint(np.exp(distance) * ONE_WEIGHT).astype(np.int64)


def kept(weights: np.ndarray, top_k: int, top_p_micro: int) -> np.ndarray:
    """Weights with what top-k and top-p drop set to zero."""
    weights = weights.copy()
    if 0 < top_k < len(weights):
        weights[weights < np.sort(weights)[-top_k]] = 0
    if top_p_micro < 1_000_000:
        need, descending = share_of(int(weights.sum()), top_p_micro), np.sort(weights)[::-1]
        edge = descending[np.searchsorted(np.cumsum(descending), need)]
        weights[weights < edge] = 0
    return weights


def sampled_token(
    logits: np.ndarray, temperature_micro: int, top_k: int, top_p_micro: int, seed: int, position: int
) -> int:
    """The token that a row of logits gives at `position`."""
    if temperature_micro == 0:
        return int(np.argmax(logits))
    weights = kept(weights_of(logits, temperature_micro / 1e6), top_k, top_p_micro)
    target = target_weight(int(weights.sum()), random_bits(seed, position))
    return int(np.searchsorted(np.cumsum(weights), target, side="right"))


def forward(model, tokens: list[int]) -> np.ndarray:
    """Logits of every position, float64[len(tokens), vocab], with the matrices rounded to bf16.

    Llama, Qwen2 and Qwen3.
    """
    config = model.config

    def matrix(name: str) -> np.ndarray:
        return as_float(to_bf16(model.tensor(name))).astype(np.float64)

    angles = np.outer(np.arange(len(tokens)), rope_frequencies(config))
    cosines, sines = np.cos(angles), np.sin(angles)
    group, d = config.num_heads // config.num_kv_heads, config.head_dim
    x = matrix("model.embed_tokens.weight")[tokens]
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        h = rms_norm(x, model.tensor(prefix + "input_layernorm.weight"), config.rms_norm_eps)
        heads = {}
        for name in "qkv":
            out = h @ matrix(f"{prefix}self_attn.{name}_proj.weight").T
            if config.qkv_bias:
                out = out + model.tensor(f"{prefix}self_attn.{name}_proj.bias")
            heads[name] = out.reshape(len(tokens), -1, d)
            if config.qk_norm and name != "v":
                weight = model.tensor(f"{prefix}self_attn.{name}_norm.weight")
                heads[name] = rms_norm(heads[name], weight, config.rms_norm_eps)
        for name in "qk":
            for at in range(len(tokens)):
                for head in range(heads[name].shape[1]):
                    heads[name][at, head] = rotate(heads[name][at, head], cosines[at], sines[at])
        attended = [
            [
                attention(query, heads["k"][: at + 1, head // group], heads["v"][: at + 1, head // group])
                for head, query in enumerate(heads["q"][at])
            ]
            for at in range(len(tokens))
        ]
        x = x + np.array(attended).reshape(len(tokens), -1) @ matrix(prefix + "self_attn.o_proj.weight").T
        h = rms_norm(x, model.tensor(prefix + "post_attention_layernorm.weight"), config.rms_norm_eps)
        gates, ups = (h @ matrix(f"{prefix}mlp.{name}_proj.weight").T for name in ("gate", "up"))
        x = x + (gates / (1 + np.exp(-gates)) * ups) @ matrix(prefix + "mlp.down_proj.weight").T
    x = rms_norm(x, model.tensor("model.norm.weight"), config.rms_norm_eps)
    return x @ matrix("lm_head.weight").T
