"""Models in a Hugging Face folder: config.json, tokenizer.json and safetensors files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from blink_numba.models.config import ModelConfig, config_from_huggingface
from blink_numba.models.errors import ModelError
from blink_numba.models.model import Model, StoredTensor

_FORMATS = {"F32": ("f32", np.float32), "F16": ("f16", np.float16), "BF16": ("bf16", np.uint16)}
_LENGTH_BYTES = 8  # a safetensors file begins with the length of its JSON header


@dataclass(frozen=True)
class _Entry:
    """Where a tensor lies: all rows of a stored tensor, or a part of a fused one."""

    path: Path
    dtype: str
    offset: int
    shape: tuple[int, ...]
    first_row: int = 0
    rows: int | None = None

    def logical_shape(self) -> tuple[int, ...]:
        return self.shape if self.rows is None else (self.rows, *self.shape[1:])


class HuggingFaceModel(Model):
    """A model read from a folder as the Hugging Face Hub lays it out, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        raw = _read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        config = config_from_huggingface(raw, _read_json(generation) if generation.exists() else None)
        super().__init__(folder.name, config, folder)
        entries: dict[str, _Entry] = {}
        for path in _weight_files(folder):
            entries.update(_read_header(path))
        self._entries = _split_fused(entries, config)
        expected = config.expected_tensors()
        unread = [name for name in self._entries if name.endswith(".bias") and name not in expected]
        if unread:
            raise ModelError(
                f"model {self.name}: the bias {unread[0]} is not computed here: choose another model"
            )
        self.check_tensors(
            {name: entry.logical_shape() for name, entry in self._entries.items() if name in expected}
        )

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def stored(self, name: str) -> StoredTensor:
        entry = self._entries.get(name)
        if entry is None:
            raise ModelError(f"model {self.name} has no tensor {name}")
        if entry.dtype not in _FORMATS:
            raise ModelError(
                f"model {self.name}: tensor {name} is stored as {entry.dtype}; supported are {list(_FORMATS)}"
            )
        kind, dtype = _FORMATS[entry.dtype]
        data = np.memmap(entry.path, dtype=dtype, mode="r", offset=entry.offset, shape=entry.shape)
        if entry.rows is not None:
            data = data[entry.first_row : entry.first_row + entry.rows]
        return StoredTensor(kind, entry.logical_shape(), data)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent} is not a model folder: it has no {path.name}") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        single = folder / "model.safetensors"
        if not single.exists():
            raise ModelError(f"{folder} has no model.safetensors (weights in other formats are not read)")
        return [single]
    names = sorted(set(_read_json(index)["weight_map"].values()))
    for name in names:
        if not (folder / name).exists():
            raise ModelError(f"{folder} is incomplete: {name}, named by {index.name}, is missing")
    return [folder / name for name in names]


def _read_header(path: Path) -> dict[str, _Entry]:
    """Entries of one file: checked by the library, mapped by offset since it cannot give bfloat16."""
    try:
        with safe_open(path, framework="np"):
            pass
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path} is not a complete safetensors file ({error}); it may be half written: get it again"
        ) from error
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header = json.loads(file.read(length))
    start = _LENGTH_BYTES + length
    return {
        name: _Entry(path, info["dtype"], start + info["data_offsets"][0], tuple(info["shape"]))
        for name, info in header.items()
        if name != "__metadata__"
    }


def _split_fused(entries: dict[str, _Entry], config: ModelConfig) -> dict[str, _Entry]:
    """Phi's fused ``qkv_proj`` and ``gate_up_proj`` as the separate projections they are rows of."""
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts = {
        "qkv_proj": (("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows)),
        "gate_up_proj": (("gate_proj", config.intermediate_size), ("up_proj", config.intermediate_size)),
    }
    result: dict[str, _Entry] = {}
    for name, entry in entries.items():
        stem = name.split(".")[-2] if "." in name else ""
        if stem not in parts:
            result[name] = entry
            continue
        first = 0
        for part, rows in parts[stem]:
            split = _Entry(entry.path, entry.dtype, entry.offset, entry.shape, first, rows)
            result[name.replace(stem, part)] = split
            first += rows
        if first != entry.shape[0]:
            raise ModelError(f"tensor {name} has {entry.shape[0]} rows, its configuration needs {first}")
    return result
