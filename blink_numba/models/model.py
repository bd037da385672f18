"""A loaded model: its configuration and its tensors under Hugging Face's names and layout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blink_numba.models.config import ModelConfig
from blink_numba.models.errors import ModelError


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as its file holds it, rows in Hugging Face's order.

    Attributes
    ----------
    format : str
        ``"f32"``, ``"f16"``, ``"bf16"`` (data is uint16), or the lower-case name of a GGUF
        block format such as ``"q4_1"``.
    shape : tuple of int
        Logical shape.
    data : ndarray
        Values, or for block formats uint8[rows, bytes of a row].
    """

    format: str
    shape: tuple[int, ...]
    data: np.ndarray


class Model(ABC):
    """A model's configuration and weights; tensors are read when asked for.

    Attributes
    ----------
    name : str
    config : ModelConfig
    tokenizer_source : Path or None
        What to load the tokenizer from; None for the byte tokenizer of ``tiny``.
    """

    def __init__(self, name: str, config: ModelConfig, tokenizer_source: Path | None) -> None:
        self.name = name
        self.config = config
        self.tokenizer_source = tokenizer_source

    @abstractmethod
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the tensors stored, in the file's order."""

    @abstractmethod
    def stored(self, name: str) -> StoredTensor:
        """A tensor as it is stored; `ModelError` if there is none of this name."""

    def tensor(self, name: str) -> np.ndarray:
        """A tensor dequantized to float32, C-contiguous.

        ``lm_head.weight`` of a model with tied embeddings is its embedding.
        """
        return dequantize(self.stored(self.resolve(name)))

    def resolve(self, name: str) -> str:
        """The stored name behind `name`: the embedding for a tied ``lm_head.weight``."""
        if name == "lm_head.weight" and self.config.tie_word_embeddings:
            return "model.embed_tokens.weight"
        return name

    def check_tensors(self, shape_of: dict[str, tuple[int, ...]]) -> None:
        """Raise `ModelError` unless every expected tensor is there in the expected shape."""
        expected = self.config.expected_tensors()
        missing = [name for name in expected if name not in shape_of]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise ModelError(f"model {self.name}: missing tensors {', '.join(missing[:3])}{more}")
        for name, shape in expected.items():
            if tuple(shape_of[name]) != shape:
                raise ModelError(
                    f"model {self.name}: tensor {name} has shape {tuple(shape_of[name])}, "
                    f"its configuration needs {shape}"
                )


def dequantize(tensor: StoredTensor) -> np.ndarray:
    """A stored tensor as float32, C-contiguous; block formats by the `gguf` library's definition."""
    if tensor.format == "bf16":
        widened = tensor.data.astype(np.uint32) << np.uint32(16)
        return widened.view(np.float32).reshape(tensor.shape)
    if tensor.format in ("f32", "f16"):
        return np.ascontiguousarray(tensor.data, dtype=np.float32).reshape(tensor.shape)
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize as dequantize_blocks

    kind = GGMLQuantizationType[tensor.format.upper()]
    return np.ascontiguousarray(dequantize_blocks(tensor.data, kind), dtype=np.float32).reshape(tensor.shape)
