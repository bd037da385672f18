"""GGUF files: names and layout as Hugging Face has them; damaged and foreign files are refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from blink_numba.models import ModelConfig, ModelError, SyntheticModel, load_model
from blink_numba.models.gguf_file import GgufModel, _gguf_name
from tests.models import smollm2_path

CONFIG = ModelConfig(
    "llama", vocab_size=40, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=16, rope_theta=5e4, rms_norm_eps=2**-16, max_position=512, bos_id=1, eos_ids=(2, 5),
)  # fmt: skip


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of Q and K."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write(path, config=CONFIG, *, architecture="llama", kind="F32", without=(), factors=None, window=0):
    source = SyntheticModel("source", config, seed=1, scale=1.0)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position)
    if window:
        writer.add_sliding_window(window)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_bos_token_id(config.bos_id)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(5)
    for name in source.tensor_names():
        if name in without:
            continue
        data = source.tensor(name)
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            data = permute(data, config.num_heads if "q_proj" in name else config.num_kv_heads)
        tensor = _gguf_name(name)[0]
        if data.ndim == 2 and kind != "F32":
            quantization = GGMLQuantizationType[kind]
            writer.add_tensor(tensor, quantize(data, quantization), raw_dtype=quantization)
        else:
            writer.add_tensor(tensor, data)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return source


def test_tensors_and_configuration_come_back(tmp_path):
    source = write(tmp_path / "model.gguf")
    model = load_model(tmp_path / "model.gguf")
    assert model.config == CONFIG
    assert model.tokenizer_source == tmp_path / "model.gguf"
    for name in source.tensor_names():
        np.testing.assert_array_equal(model.tensor(name), source.tensor(name))


def test_a_sequence_ends_where_a_sliding_window_would_begin_to_forget(tmp_path):
    write(tmp_path / "model.gguf", window=100)
    assert load_model(tmp_path / "model.gguf").config.max_position == 100


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "BF16", "F16"])
def test_compact_formats(tmp_path, kind):
    source = write(tmp_path / "model.gguf", kind=kind)
    model = GgufModel(tmp_path / "model.gguf")
    name = "model.layers.1.self_attn.q_proj.weight"
    quantization = GGMLQuantizationType[kind]
    expected = dequantize(quantize(source.tensor(name), quantization), quantization)
    assert model.stored(name).format == kind.lower()
    np.testing.assert_array_equal(model.tensor(name), expected)


def test_only_llama_is_permuted(tmp_path):
    config = ModelConfig(**{**CONFIG.__dict__, "architecture": "qwen2", "qkv_bias": True})
    source = write(tmp_path / "model.gguf", config, architecture="qwen2")
    model = load_model(tmp_path / "model.gguf")
    assert model.config.qkv_bias
    for name in source.tensor_names():
        np.testing.assert_array_equal(model.tensor(name), source.tensor(name))


def test_rotary_factors(tmp_path):
    write(tmp_path / "model.gguf", factors=[1, 1, 2, 2, 4, 4, 8, 8])
    scaling = load_model(tmp_path / "model.gguf").config.rope_scaling
    assert scaling == {"rope_type": "factors", "factors": (1, 1, 2, 2, 4, 4, 8, 8)}


def test_without_a_head_the_embedding_is_tied(tmp_path):
    source = write(tmp_path / "model.gguf", without=["lm_head.weight"])
    model = load_model(tmp_path / "model.gguf")
    assert model.config.tie_word_embeddings
    np.testing.assert_array_equal(model.tensor("lm_head.weight"), source.tensor("model.embed_tokens.weight"))


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.1, 0.9, 0.999])
def test_a_file_cut_short_is_refused(tmp_path, fraction):
    path = tmp_path / "model.gguf"
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * fraction)])
    with pytest.raises(ModelError, match=r"model\.gguf is not a complete GGUF file.*delete it"):
        load_model(path)


def test_foreign_architectures_and_missing_tensors_are_named(tmp_path):
    write(tmp_path / "gpt.gguf", architecture="gpt2")
    with pytest.raises(ModelError, match="architecture 'gpt2' is not supported"):
        load_model(tmp_path / "gpt.gguf")
    write(tmp_path / "part.gguf", without=["model.layers.1.mlp.up_proj.weight"])
    with pytest.raises(ModelError, match=r"missing tensors model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(tmp_path / "part.gguf")
    (tmp_path / "text.gguf").write_text("not a model at all, but long enough to be read as one")
    with pytest.raises(ModelError, match="not a complete GGUF file"):
        load_model(tmp_path / "text.gguf")


def test_smollm2():
    model = load_model(smollm2_path())
    assert model.config.num_layers == 30
    assert model.config.eos_ids == (2,)
    assert model.stored("model.layers.0.mlp.down_proj.weight").format == "q4_1"
    assert model.tensor("lm_head.weight").shape == (49152, 576)
