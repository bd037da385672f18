"""Models without a file: the seeded `tiny` and shapes with dummy weights."""

from __future__ import annotations

import zlib

import numpy as np

from blink_numba.models.config import ModelConfig
from blink_numba.models.errors import ModelError
from blink_numba.models.model import Model, StoredTensor

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

# 256 bytes, then <|im_start|>, <|im_end|>, <|endoftext|>; both end marks end an answer
TINY = ModelConfig(
    architecture="llama",
    vocab_size=259,
    hidden_size=64,
    intermediate_size=160,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    tie_word_embeddings=True,
    max_position=2048,
    eos_ids=(257, 258),
)

# Shapes of published models, for runs that measure time and not text.
SHAPES: dict[str, ModelConfig] = {
    "smollm2": ModelConfig(
        architecture="llama", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30,
        num_heads=9, num_kv_heads=3, head_dim=64, rope_theta=100000.0, tie_word_embeddings=True,
        max_position=8192, bos_id=1, eos_ids=(2,),
    ),
    "llama3-8b": ModelConfig(
        architecture="llama", vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32,
        num_heads=32, num_kv_heads=8, head_dim=128, rope_theta=500000.0, rope_scaling=_LLAMA3_ROPE,
        max_position=131072, bos_id=128000, eos_ids=(128001, 128008, 128009),
    ),
    "phi4-15b": ModelConfig(
        architecture="llama", vocab_size=100352, hidden_size=5120, intermediate_size=17920, num_layers=40,
        num_heads=40, num_kv_heads=10, head_dim=128, rope_theta=250000.0, max_position=16384,
        bos_id=100257, eos_ids=(100257, 100265),
    ),
    "qwen3-32b": ModelConfig(
        architecture="qwen3", vocab_size=151936, hidden_size=5120, intermediate_size=25600, num_layers=64,
        num_heads=64, num_kv_heads=8, head_dim=128, rope_theta=1000000.0, rms_norm_eps=1e-6, qk_norm=True,
        max_position=40960, bos_id=151643, eos_ids=(151643, 151645),
    ),
    "qwen3-30b-a3b": ModelConfig(
        architecture="qwen3_moe", vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_layers=48,
        num_heads=32, num_kv_heads=4, head_dim=128, rope_theta=1000000.0, rms_norm_eps=1e-6, qk_norm=True,
        max_position=40960, bos_id=151643, eos_ids=(151643, 151645), num_experts=128, experts_per_token=8,
        moe_intermediate_size=768, norm_topk_prob=True,
    ),
}  # fmt: skip


class SyntheticModel(Model):
    """Seeded random weights in a given shape, made when asked for.

    Each tensor is drawn from a generator seeded by its own name, so its values depend neither
    on the order in which tensors are asked for nor on the model's other tensors.

    Parameters
    ----------
    name : str
    config : ModelConfig
    seed : int
    scale : float
        Standard deviation of the matrices; norms are one plus a tenth of it.
    """

    def __init__(self, name: str, config: ModelConfig, *, seed: int = 0, scale: float = 0.02) -> None:
        super().__init__(name, config, None)
        self._seed = seed
        self._scale = scale
        self._shapes = config.expected_tensors()

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def stored(self, name: str) -> StoredTensor:
        if name not in self._shapes:
            raise ModelError(f"model {self.name} has no tensor {name}")
        shape = self._shapes[name]
        generator = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        values = generator.standard_normal(shape, dtype=np.float32)
        if name.endswith("norm.weight"):
            values = 1.0 + 0.1 * self._scale * values
        else:
            values *= self._scale
        return StoredTensor("f32", shape, values.astype(np.float32, copy=False))


def tiny_model() -> SyntheticModel:
    """The two-layer model of the tests; its weights are large enough that answers vary with the prompt."""
    return SyntheticModel("tiny", TINY, seed=20260407, scale=0.25)
