"""The CPU engine computes what `transformers` computes on the same weights.

The stored values come from ``scripts/make_logit_reference.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blink_numba.engines import EngineLimits
from blink_numba.engines.cpu import CpuEngine
from blink_numba.models import load_model
from tests.engines.driver import Driver
from tests.models import smollm2_path

REFERENCE = Path(__file__).parent / "data" / "smollm2_logits.npz"
PROMPTS = 5
TOLERANCE = 1e-3  # relative to the largest logit of a step; differences of rounding are below 1e-5


@pytest.fixture(scope="module")
def engine():
    model = load_model(smollm2_path())
    engine = CpuEngine(model, EngineLimits(seats=8, kv_tokens=2048, prefill_tokens=64))
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def reference():
    with np.load(REFERENCE) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("index", range(PROMPTS))
def test_logits_and_greedy_tokens(engine, reference, index):
    driver = Driver(engine)
    driver.prefill({3: reference[f"prompt_{index}"]})
    tokens = []
    for ids, expected, norm in zip(
        reference[f"top_ids_{index}"], reference[f"top_logits_{index}"], reference[f"norms_{index}"]
    ):
        logits = driver.logits(1)[0]
        np.testing.assert_allclose(logits[ids], expected, atol=TOLERANCE * np.abs(expected).max(), rtol=0)
        assert np.linalg.norm(logits.astype(np.float64)) == pytest.approx(norm, rel=TOLERANCE)
        tokens.append(int(driver.io.out_token[3]))
        driver.decode([3])
    assert tokens == reference[f"tokens_{index}"].tolist()


def test_five_prompts_at_once_give_the_same_answers(engine, reference):
    driver = Driver(engine)
    seats = {seat: reference[f"prompt_{index}"] for index, seat in enumerate((6, 1, 4, 0, 7))}
    for seat, prompt in seats.items():
        driver.prefill({seat: prompt})
    answers = [[int(driver.io.out_token[seat])] for seat in seats]
    for _ in range(31):
        for answer, token in zip(answers, driver.decode(list(seats))):
            answer.append(token)
    assert answers == [reference[f"tokens_{index}"][:32].tolist() for index in range(PROMPTS)]


def test_quantized_panels_expanded_or_not_give_the_same_bits(engine, reference):
    prompt = reference["prompt_4"]
    whole = Driver(engine)
    whole.prefill({0: prompt})
    expected = whole.logits(1)
    single = Driver(engine)
    single.prefill({0: prompt[:1]}, ends=False)
    for token in prompt[1:]:
        single.io.seat_token[0] = token
        single.decode([0])
    np.testing.assert_array_equal(single.logits(1), expected)
