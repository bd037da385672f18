"""Model configurations: what is read from config.json, and rotary frequencies."""

from __future__ import annotations

import numpy as np
import pytest

from blink_numba.models import SHAPES, ModelConfig, ModelError, load_model, rope_frequencies
from blink_numba.models.config import config_from_huggingface

LLAMA = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": [2, 3], "tie_word_embeddings": True,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def test_fields_of_a_llama():
    config = config_from_huggingface({**LLAMA, "rope_theta": 5e5})
    assert (config.architecture, config.head_dim, config.num_kv_heads) == ("llama", 16, 2)
    assert (config.rope_theta, config.rope_scaling, config.eos_ids) == (5e5, None, (2, 3))
    assert config.tie_word_embeddings
    assert not config.qkv_bias


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_both_spellings_of_rotary_scaling(key):
    config = config_from_huggingface({**LLAMA, key: {**LLAMA3_ROPE, "rope_theta": 5e5}})
    assert config.rope_theta == 5e5
    assert config.rope_scaling == LLAMA3_ROPE


def test_generation_config_decides_about_the_end():
    assert config_from_huggingface(LLAMA, {"eos_token_id": 9}).eos_ids == (9,)


@pytest.mark.parametrize(
    ("model_type", "architecture", "bias", "norm"),
    [("qwen2", "qwen2", True, False), ("qwen3", "qwen3", False, True), ("phi3", "llama", False, False)],
)
def test_families(model_type, architecture, bias, norm):
    config = config_from_huggingface({**LLAMA, "model_type": model_type})
    assert (config.architecture, config.qkv_bias, config.qk_norm) == (architecture, bias, norm)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rotary scaling 'yarn'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"eos_token_id": 100}, "outside the vocabulary"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"intermediate_size": None}, "intermediate_size must be positive"),
        ({"max_position_embeddings": 1}, "max_position is 1"),
    ],
)
def test_what_is_not_computed_is_refused(change, message):
    with pytest.raises(ModelError, match=message):
        config_from_huggingface({**LLAMA, **change})


@pytest.mark.parametrize(
    ("change", "positions"),
    [
        ({"model_type": "mistral", "sliding_window": 128}, 128),
        ({"model_type": "mistral", "sliding_window": None}, 512),
        ({"model_type": "phi3", "sliding_window": 2047}, 512),
        ({"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": False}, 512),
    ],
)
def test_a_sequence_ends_where_a_window_would_hide_its_beginning(change, positions):
    assert config_from_huggingface({**LLAMA, **change}).max_position == positions


def test_a_missing_field_is_named():
    with pytest.raises(ModelError, match="vocab_size"):
        config_from_huggingface({key: value for key, value in LLAMA.items() if key != "vocab_size"})


def test_llama3_frequencies():
    """Kept above the high edge, divided below the low one, between by linear interpolation."""
    config = SHAPES["llama3-8b"]
    plain = config.rope_theta ** (-np.arange(64) / 64)
    scaled = rope_frequencies(config)
    turns = 8192 * plain / (2 * np.pi)
    np.testing.assert_allclose(scaled[turns > 4], plain[turns > 4])
    np.testing.assert_allclose(scaled[turns < 1], plain[turns < 1] / 8)
    between = (turns > 1) & (turns < 4)
    smooth = (turns[between] - 1) / 3
    np.testing.assert_allclose(scaled[between], (1 - smooth) * plain[between] / 8 + smooth * plain[between])
    assert between.any()


@pytest.mark.parametrize("name", SHAPES)
def test_dummy_models_have_every_tensor(name):
    model = load_model(name, dummy=True)
    expected = model.config.expected_tensors()
    assert set(model.tensor_names()) == set(expected)
    norm = "model.layers.0.input_layernorm.weight"
    assert model.tensor(norm).shape == expected[norm] == (model.config.hidden_size,)


def test_published_sizes():
    def parameters(config: ModelConfig) -> float:
        return sum(float(np.prod(shape)) for shape in config.expected_tensors().values()) / 1e9

    sizes = {name: round(parameters(config), 2) for name, config in SHAPES.items()}
    assert sizes == {
        "smollm2": 0.13, "llama3-8b": 8.03, "phi4-15b": 14.66, "qwen3-32b": 32.76, "qwen3-30b-a3b": 30.53,
    }  # fmt: skip


def test_tiny_is_seeded():
    first, second = load_model("tiny"), load_model("tiny")
    names = first.tensor_names()
    for name in (names[0], names[-1]):
        np.testing.assert_array_equal(first.tensor(name), second.tensor(name))
    np.testing.assert_array_equal(first.tensor("lm_head.weight"), first.tensor("model.embed_tokens.weight"))


def test_unknown_names_and_missing_weights():
    with pytest.raises(ModelError, match="neither the name of a model"):
        load_model("no-such-model")
    with pytest.raises(ModelError, match="no weights to fetch"):
        load_model("llama3-8b")
