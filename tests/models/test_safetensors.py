"""Hugging Face folders: single and sharded files, bfloat16, fused projections, damage."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from blink_numba.models import ModelConfig, ModelError, SyntheticModel, load_model

CONFIG = ModelConfig(
    "llama", vocab_size=40, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=16, max_position=512, bos_id=1, eos_ids=(2,),
)  # fmt: skip
SOURCE = SyntheticModel("source", CONFIG, seed=1)
TENSORS = {name: SOURCE.tensor(name) for name in SOURCE.tensor_names()}


def write_config(folder, model_type="llama"):
    raw = {
        "model_type": model_type, "vocab_size": 40, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(raw))


def write_sharded(folder):
    names = list(TENSORS)
    shards = {"a.safetensors": names[:10], "b.safetensors": names[10:]}
    for shard, content in shards.items():
        save_file({name: TENSORS[name] for name in content}, folder / shard)
    weight_map = {name: shard for shard, content in shards.items() for name in content}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def assert_equal(model):
    for name, expected in TENSORS.items():
        np.testing.assert_array_equal(model.tensor(name), expected)


def test_single_file(tmp_path):
    write_config(tmp_path)
    save_file(TENSORS, tmp_path / "model.safetensors")
    model = load_model(tmp_path)
    assert model.config == CONFIG
    assert model.tokenizer_source == tmp_path
    assert_equal(model)


def test_sharded(tmp_path):
    write_config(tmp_path)
    write_sharded(tmp_path)
    assert_equal(load_model(tmp_path))
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"b\.safetensors, named by .*, is missing"):
        load_model(tmp_path)


def test_bfloat16(tmp_path):
    write_config(tmp_path)
    header, data = {}, b""
    for name, values in TENSORS.items():
        raw = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": values.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    model = load_model(tmp_path)
    for name, values in TENSORS.items():
        assert model.stored(name).format == "bf16"
        np.testing.assert_array_equal(
            model.tensor(name), (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
        )


def test_fused_projections_of_phi(tmp_path):
    write_config(tmp_path, "phi3")
    fused = {}
    for name, values in TENSORS.items():
        if not any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")):
            fused[name] = values
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for target, parts in (("self_attn.qkv_proj", ("q", "k", "v")), ("mlp.gate_up_proj", ("gate", "up"))):
            stem = prefix + target.split(".")[0]
            rows = [TENSORS[f"{stem}.{part}_proj.weight"] for part in parts]
            fused[f"{prefix}{target}.weight"] = np.concatenate(rows)
    save_file(fused, tmp_path / "model.safetensors")
    assert_equal(load_model(tmp_path))


def test_what_is_wrong_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_model(tmp_path)
    write_config(tmp_path)
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        load_model(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({name: value for name, value in TENSORS.items() if "norm" not in name}, path)
    with pytest.raises(ModelError, match="missing tensors"):
        load_model(tmp_path)
    save_file({**TENSORS, "model.norm.weight": np.zeros(3, np.float32)}, path)
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \(3,\)"):
        load_model(tmp_path)
    save_file({**TENSORS, "model.layers.1.self_attn.o_proj.bias": np.zeros(64, np.float32)}, path)
    with pytest.raises(ModelError, match=r"the bias model\.layers\.1\.self_attn\.o_proj\.bias"):
        load_model(tmp_path)
    save_file(TENSORS, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="not a complete safetensors file"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot read"):
        load_model(tmp_path)
