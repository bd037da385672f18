"""How much an engine serves at once, and the step shapes that follow."""

from __future__ import annotations

from dataclasses import dataclass

from blink_numba.engines.sampling import MOST_TOKENS
from blink_numba.models import ModelConfig, ModelError
from graphs.step_io import EngineSpec


@dataclass(frozen=True)
class EngineLimits:
    """What an engine is sized for; common to all engines.

    Attributes
    ----------
    seats : int
        Requests in service at once, the largest decode batch.
    max_model_len : int or None
        Most tokens of a request, prompt and answer; None for what the model was made for,
        as far as the cache holds it.
    kv_tokens : int
        Tokens the KV cache holds, over all requests; rounded up to whole blocks.
    prefill_tokens : int
        Most tokens of a prefill step; longer prompts are prefilled in chunks.
    prefill_sequences : int
        Most prompts packed into one prefill step.
    block_size : int
        Tokens of a KV block, a multiple of 16.
    """

    seats: int = 16
    max_model_len: int | None = None
    kv_tokens: int = 8192
    prefill_tokens: int = 256
    prefill_sequences: int = 8
    block_size: int = 16

    def __post_init__(self) -> None:
        for name in ("seats", "kv_tokens", "prefill_tokens", "prefill_sequences", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.block_size % 16:
            raise ValueError(f"block_size must be a multiple of 16, got {self.block_size}")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError(f"max_model_len must be at least 2, got {self.max_model_len}")

    def spec(self, config: ModelConfig) -> EngineSpec:
        """The step shapes for a model.

        Raises
        ------
        ValueError
            `max_model_len` exceeds what the model was made for or what the cache holds.
        ModelError
            The model's vocabulary is larger than can be sampled from.
        """
        if config.vocab_size > MOST_TOKENS:
            raise ModelError(
                f"the model has a vocabulary of {config.vocab_size} tokens; the integer weights of sampling "
                f"serve up to {MOST_TOKENS}: choose another model"
            )
        blocks = -(-self.kv_tokens // self.block_size)
        longest = min(config.max_position, blocks * self.block_size)
        if self.max_model_len is not None:
            if self.max_model_len > config.max_position:
                raise ValueError(
                    f"max_model_len {self.max_model_len} exceeds the {config.max_position} positions "
                    "of the model"
                )
            longest = self.max_model_len
        return EngineSpec(
            seats=self.seats,
            decode_batches=_doubling(1, self.seats),
            prefill_tokens=_doubling(min(16, self.prefill_tokens), self.prefill_tokens),
            prefill_sequences=self.prefill_sequences,
            block_size=self.block_size,
            blocks=blocks,
            blocks_per_seat=-(-longest // self.block_size),
            max_model_len=longest,
            vocab_size=config.vocab_size,
            eos_ids=config.eos_ids,
        )


def _doubling(first: int, last: int) -> tuple[int, ...]:
    grid = []
    while first < last:
        grid.append(first)
        first *= 2
    return (*grid, last)
