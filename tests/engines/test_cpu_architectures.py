"""Every variant of the Llama family against the forward pass written down plainly."""

from __future__ import annotations

import numpy as np
import pytest

from blink_numba.engines import EngineLimits
from blink_numba.engines.cpu import CpuEngine
from blink_numba.models import ModelConfig, ModelError, SyntheticModel, load_model
from tests.engines.driver import Driver
from tests.engines.plain_forward import plain_logits

SHAPE = {
    "vocab_size": 131, "hidden_size": 80, "intermediate_size": 112, "num_layers": 2, "num_heads": 6,
    "num_kv_heads": 2, "head_dim": 16, "max_position": 512,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
VARIANTS = {
    "llama": ModelConfig("llama", **SHAPE),
    "tied": ModelConfig("llama", **SHAPE, tie_word_embeddings=True),
    "llama3_rope": ModelConfig("llama", **SHAPE, rope_theta=5e5, rope_scaling=LLAMA3),
    "one_kv_head_a_head": ModelConfig("llama", **{**SHAPE, "num_kv_heads": 6}),
    "wide_heads": ModelConfig("llama", **{**SHAPE, "head_dim": 80}),
    "qwen2": ModelConfig("qwen2", **SHAPE, qkv_bias=True),
    "qwen3": ModelConfig("qwen3", **{**SHAPE, "head_dim": 48}, qk_norm=True, rms_norm_eps=1e-6),
}


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits(variant, block_size):
    model = SyntheticModel(variant, VARIANTS[variant], seed=3, scale=0.3)
    tokens = np.random.default_rng(5).integers(0, 131, size=100)
    expected = plain_logits(model, tokens)
    limits = EngineLimits(seats=2, kv_tokens=256, prefill_tokens=96, block_size=block_size)
    engine = CpuEngine(model, limits)
    try:
        driver = Driver(engine)
        for count in (96, 97, 98, 99, 100):
            if count == 96:
                driver.prefill({1: tokens[:96]})
            else:
                driver.io.seat_token[1] = tokens[count - 1]
                driver.decode([1])
            scale = np.abs(expected[count - 1]).max()
            np.testing.assert_allclose(driver.logits(1)[0], expected[count - 1], atol=2e-5 * scale, rtol=0)
    finally:
        engine.stop()


def test_experts_are_refused():
    with pytest.raises(ModelError, match="dense models only"):
        CpuEngine(load_model("qwen3-30b-a3b", dummy=True))
