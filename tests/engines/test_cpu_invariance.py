"""The contract of the CPU engine: a token's logits are the same bits however it is batched or chunked."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink_numba.engines import EngineLimits
from blink_numba.engines.cpu import CpuEngine
from blink_numba.models import load_model
from tests.engines.driver import Driver

LIMITS = EngineLimits(seats=8, kv_tokens=2048, prefill_tokens=128, prefill_sequences=4)


def make_engine(threads: int | None = None) -> CpuEngine:
    return CpuEngine(load_model("tiny"), LIMITS, threads=threads)


@pytest.fixture(scope="module")
def engine():
    engine = make_engine()
    yield engine
    engine.stop()


def prompt(seed: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=length)


def logits_of(engine: CpuEngine, tokens: np.ndarray, seat: int = 0) -> np.ndarray:
    """Logits after a prompt, prefilled whole and alone."""
    driver = Driver(engine)
    driver.prefill({seat: tokens})
    return driver.logits(1)[0]


@settings(max_examples=30, deadline=None)
@given(length=st.integers(2, 120), cuts=st.sets(st.integers(1, 119), max_size=5), seat=st.integers(0, 7))
def test_prefill_in_chunks(engine, length, cuts, seat):
    tokens = prompt(length, length)
    expected = logits_of(engine, tokens)
    driver = Driver(engine)
    edges = [0, *sorted(cut for cut in cuts if cut < length), length]
    for start, end in pairwise(edges):
        driver.prefill({seat: tokens[start:end]}, starts={seat: start}, ends=end == length)
    np.testing.assert_array_equal(driver.logits(1)[0], expected)


def test_prefill_token_by_token_as_decode_rows(engine):
    tokens = prompt(1, 70)
    driver = Driver(engine)
    driver.prefill({2: tokens[:1]}, ends=False)
    for token in tokens[1:]:
        driver.io.seat_token[2] = token
        driver.decode([2])
    np.testing.assert_array_equal(driver.logits(1)[0], logits_of(engine, tokens))


def test_packed_prefill(engine):
    prompts = {5: prompt(2, 17), 0: prompt(3, 40), 7: prompt(4, 1), 3: prompt(5, 33)}
    driver = Driver(engine)
    driver.prefill(prompts)
    packed = driver.logits(len(prompts))
    for row, tokens in zip(packed, prompts.values()):
        np.testing.assert_array_equal(row, logits_of(engine, tokens))


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 8])
def test_decode_in_any_batch(engine, batch):
    prompts = {seat: prompt(seat, 5 + 9 * seat) for seat in range(8)}
    seats, steps = list(range(batch))[::-1], 12

    def run(groups: list[list[int]]) -> list[np.ndarray]:
        driver = Driver(engine)
        for seat, tokens in prompts.items():
            driver.prefill({seat: tokens})
        rows = []
        for _ in range(steps):
            for group in groups:
                driver.decode(group)
                rows.extend(driver.logits(len(group)))
        return rows

    np.testing.assert_array_equal(run([seats]), run([[seat] for seat in seats]))


def test_sampled_answers_do_not_depend_on_seat_or_batch(engine):
    def answer(seat: int, others: dict[int, int]) -> list[int]:
        driver = Driver(engine)
        driver.sample_with(seat, temperature=0.9, top_p=0.95, top_k=40, seed=1234)
        driver.prefill({seat: prompt(6, 20)})
        for other, seed in others.items():
            driver.sample_with(other, temperature=1.3, seed=seed)
            driver.prefill({other: prompt(seed, 11)})
        tokens = [int(driver.io.out_token[seat])]
        for _ in range(24):
            driver.decode([*others, seat])
            tokens.append(int(driver.io.out_token[seat]))
        return tokens

    alone = answer(4, {})
    assert len(set(alone)) > 8, "an answer without variety proves nothing"
    assert answer(1, {0: 7, 3: 8, 6: 9}) == alone
    assert answer(7, {2: 10}) == alone


def test_any_number_of_threads(engine):
    several = make_engine(threads=3)
    tokens = prompt(8, 90)
    try:
        np.testing.assert_array_equal(logits_of(several, tokens), logits_of(engine, tokens))
    finally:
        several.stop()
