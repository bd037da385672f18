"""The CPU engine at sizes that fill no panel, vector, tile or block.

Its kernels check no bounds: every array lies between guards, NaN where a float is read, that must
stay as they were, and what a step has not written yet is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from blink_numba.engines import EngineLimits
from blink_numba.engines.cpu import CpuEngine
from blink_numba.models import ModelConfig, SyntheticModel
from tests.engines.driver import Driver
from tests.engines.plain_forward import plain_logits

GUARD = 192  # elements before and behind each array: more than any panel or tile is wide
SMALL = {
    "architecture": "llama", "vocab_size": 259, "hidden_size": 24, "intermediate_size": 40, "num_layers": 2,
    "num_heads": 3, "num_kv_heads": 1, "head_dim": 16, "tie_word_embeddings": True, "eos_ids": (0,),
}  # fmt: skip
LIMITS = EngineLimits(seats=4, kv_tokens=512, prefill_tokens=17, prefill_sequences=3, max_model_len=96)


@dataclass
class Guarded:
    """An array between two guards."""

    name: str
    memory: np.ndarray
    before: bytes

    @classmethod
    def around(cls, name: str, array: np.ndarray) -> Guarded:
        memory = np.empty(array.size + 2 * GUARD, array.dtype)
        memory[:] = np.nan if array.dtype.kind == "f" else (255 if array.dtype == np.uint8 else -(2**40))
        guards = cls(name, memory, memory[:GUARD].tobytes())
        guards.array[:] = array
        return guards

    @property
    def array(self) -> np.ndarray:
        return self.memory[GUARD:-GUARD]

    def check(self) -> None:
        for guard in (self.memory[:GUARD], self.memory[-GUARD:]):
            assert guard.tobytes() == self.before, f"written outside of {self.name}"


def guard(memory, guards: list[Guarded], unwritten: bool = False):
    """A named tuple with its arrays between guards, their floats NaN if nothing has been written yet."""
    for name, value in memory._asdict().items():
        if isinstance(value, np.ndarray):
            guarded = Guarded.around(name, value)
            if unwritten and value.dtype.kind == "f":
                guarded.array[:] = np.nan
            guards.append(guarded)
            memory = memory._replace(**{name: guarded.array})
    return memory


def follows_plain_forward(limits: EngineLimits, prompts: list[int], threads: int = 1, **shape) -> None:
    """Prompts of these lengths, a seat each, then two decode steps with padding between the rows."""
    model = SyntheticModel("odd", ModelConfig(**{**SMALL, **shape}), scale=0.2)
    engine, guards = CpuEngine(model, limits, threads=threads), []
    engine._network = guard(engine._network, guards)
    engine._cache = guard(engine._cache, guards, unwritten=True)
    engine._acts = guard(engine._acts, guards, unwritten=True)
    engine._scratch = [guard(scratch, guards, unwritten=True) for scratch in engine._scratch]
    spec, rng = engine.spec, np.random.default_rng(4)
    driver = Driver(engine, blocks_per_seat=min(spec.blocks_per_seat, spec.blocks // spec.seats))
    most, sequences = spec.prefill_tokens[-1], []

    def check(logits: np.ndarray, tokens: list[int]) -> None:
        expected = plain_logits(model, np.array(tokens))[-1]
        np.testing.assert_allclose(logits, expected, atol=2e-3 * max(np.abs(expected).max(), 1e-3))

    try:
        for seat, length in enumerate(prompts):
            tokens = rng.integers(0, spec.vocab_size, length).tolist()
            for first in range(0, length, most):
                last = first + most >= length
                driver.prefill({seat: tokens[first : first + most]}, starts={seat: first}, ends=last)
            check(driver.logits(1)[0], tokens)
            sequences.append([*tokens, int(driver.io.out_token[seat])])
        for _ in range(2):
            seats = list(range(len(prompts)))
            rows = [0, -1, *seats[1:]] if len(prompts) < spec.seats else seats
            sampled = driver.decode(rows)
            for tokens, logits, token in zip(sequences, driver.logits(len(prompts)), sampled, strict=True):
                check(logits, tokens)
                tokens.append(token)
    finally:
        engine.stop()
    for each in guards:
        each.check()


@pytest.mark.parametrize(
    "shape",
    [
        {"vocab_size": 1}, {"vocab_size": 17}, {"vocab_size": 33, "tie_word_embeddings": False},
        {"hidden_size": 1, "intermediate_size": 1}, {"hidden_size": 33, "intermediate_size": 17},
        {"hidden_size": 72, "intermediate_size": 65}, {"head_dim": 80, "qkv_bias": True},
        {"head_dim": 112, "qk_norm": True}, {"num_heads": 17, "qkv_bias": True, "qk_norm": True},
        {"num_heads": 7, "num_kv_heads": 7}, {"num_heads": 64},
    ],
    ids=lambda shape: " ".join(f"{name}={value}" for name, value in shape.items()),
)  # fmt: skip
def test_shapes(shape):
    follows_plain_forward(LIMITS, [1, 3, 17], **shape)


@pytest.mark.parametrize(
    ("block_size", "longest", "prompt"), [(16, 18, 16), (48, 65, 63), (32, 128, 126), (144, 144, 129)]
)
def test_a_single_seat_up_to_the_last_position_and_block(block_size, longest, prompt):
    limits = EngineLimits(
        seats=1, kv_tokens=longest, prefill_tokens=33, prefill_sequences=1, max_model_len=longest,
        block_size=block_size,
    )  # fmt: skip
    follows_plain_forward(limits, [prompt])


@pytest.mark.parametrize("seats", [5, 13, 17])
def test_batches_between_the_tiles(seats):
    limits = EngineLimits(
        seats=seats, kv_tokens=32 * seats, prefill_tokens=3, prefill_sequences=1, max_model_len=32
    )
    follows_plain_forward(limits, [2] * seats)


def test_more_threads_than_tasks():
    follows_plain_forward(LIMITS, [1, 2], threads=3, vocab_size=31, hidden_size=8)
