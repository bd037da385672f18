"""Sampling on the CPU against its definition (`blink_numba.engines.sampling`) in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from blink_numba.engines.cpu.kernels import compiled_kernels
from blink_numba.engines.cpu.sample import BUCKETS
from blink_numba.engines.cpu.simd import exp, load, store
from blink_numba.engines.sampling import FAULT_LOGITS, ONE_WEIGHT, random_bits, share_of, target_weight
from graphs.step_io import (
    LOGPROBS,
    SAMPLING_WORDS,
    SEED,
    SUPPRESS_EOS,
    TEMPERATURE_MICRO,
    TOP_K,
    TOP_P_MICRO,
)
from ring.jit import njit
from ring.logprobs import unpack_records
from tests.logprobs import check_record

LANES = 16
EOS = (3, 5)


@njit
def exp_of(values):
    for k in range(0, values.shape[0], LANES):
        store(values, k, exp(load(values, k)))


@njit
def sample_kernel(kernels, logits, vocab, eos_ids, sampling, position, weights, work, histogram, records):
    return kernels.sample_row(
        logits, 0, vocab, eos_ids, sampling, 0, position, weights, work, histogram, records, 3
    )


def sample(logits: np.ndarray, **options) -> int:
    return sample_with_logprobs(logits, 0, **options)[0]


def sample_with_logprobs(
    logits: np.ndarray, pairs: int, *, temperature=1.0, top_k=0, top_p=1.0, seed=0, position=1,
    suppress_eos=False,
) -> tuple[int, np.ndarray]:  # fmt: skip
    """The token of a row and its `pairs` pairs."""
    vocab = len(logits)
    room = -(-vocab // LANES) * LANES
    row = np.full(room, 1e30, np.float32)  # what lies beyond the vocabulary must not matter
    row[:vocab] = logits
    words = np.zeros(SAMPLING_WORDS, np.int64)
    words[TEMPERATURE_MICRO], words[TOP_P_MICRO] = round(temperature * 1e6), round(top_p * 1e6)
    words[TOP_K], words[SEED], words[SUPPRESS_EOS], words[LOGPROBS] = top_k, seed, int(suppress_eos), pairs
    weights, histogram = np.zeros(room, np.int64), np.zeros(BUCKETS, np.int64)
    eos_ids = np.asarray([token for token in EOS if token < vocab], np.int64)
    work, records = np.zeros(room + len(eos_ids), np.float32), np.full(3 + pairs + 1, -5, np.int64)
    token = sample_kernel(
        compiled_kernels(), row, vocab, eos_ids, words, position, weights, work, histogram, records
    )
    assert np.array_equal(row[:vocab], logits, equal_nan=True), "the logits are somebody else's too"
    assert (records[:3] == -5).all()
    assert records[-1] == -5
    return token, records[3:-1]


def weights_of(logits: np.ndarray, temperature: float) -> list[int]:
    """Integer weights, by the vector exp that the kernel uses."""
    room = -(-len(logits) // LANES) * LANES
    scaled = np.full(room, -87.0, np.float32)
    inverse = np.float32(1e6 / round(temperature * 1e6))
    scaled[: len(logits)] = (logits - logits.max()) * inverse
    exp_of(scaled)
    return [int(weight * np.float32(ONE_WEIGHT) + np.float32(0.5)) for weight in scaled[: len(logits)]]


def plain_sample(logits, temperature, top_k, top_p, seed, position) -> int:
    """The definition, sorting instead of a radix descent."""
    weights = weights_of(logits, temperature)
    descending = sorted((weight for weight in weights if weight > 0), reverse=True)
    edge = 1
    if 0 < top_k < len(descending):
        edge = descending[top_k - 1]
    if round(top_p * 1e6) < 1_000_000:
        need = share_of(sum(weight for weight in weights if weight >= edge), round(top_p * 1e6))
        running = 0
        for weight in descending:
            running += weight
            if running >= need:
                edge = max(edge, weight)
                break
    kept = [weight if weight >= edge else 0 for weight in weights]
    target, running = target_weight(sum(kept), random_bits(seed, position)), 0
    for token, weight in enumerate(kept):
        running += weight
        if running > target:
            return token
    raise AssertionError("no token")


logit_rows = arrays(
    np.float32, st.integers(1, 90), elements=st.floats(-30, 30, width=32) | st.sampled_from([0.0, 1.0, -1.5])
)


@settings(max_examples=300, deadline=None)
@given(
    logits=logit_rows,
    temperature=st.sampled_from([0.05, 0.7, 1.0, 2.0]),
    top_k=st.integers(0, 100),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01, 0.000001]),
    seed=st.integers(0, 2**62),
    position=st.integers(0, 10**6),
)
def test_the_definition(logits, temperature, top_k, top_p, seed, position):
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed, "position": position}
    assert sample(logits, **options) == plain_sample(logits, **options)


@given(logits=logit_rows)
@settings(max_examples=100, deadline=None)
def test_greedy_takes_the_lowest_of_the_largest(logits):
    assert sample(logits, temperature=0.0) == int(np.argmax(logits))


def test_frequencies_follow_the_distribution():
    logits = np.random.default_rng(1).standard_normal(40).astype(np.float32)
    draws = np.bincount([sample(logits, position=position) for position in range(20_000)], minlength=40)
    probability = np.exp(logits - logits.max())
    probability /= probability.sum()
    deviation = (draws - 20_000 * probability) / np.sqrt(20_000 * probability * (1 - probability))
    assert np.abs(deviation).max() < 4.5


def test_suppressed_ends_are_never_drawn():
    logits = np.zeros(8, np.float32)
    logits[list(EOS)] = 20.0
    assert sample(logits, temperature=0.0) in EOS
    assert sample(logits, temperature=0.0, suppress_eos=True) == 0
    drawn = {sample(logits, position=position, suppress_eos=True) for position in range(200)}
    assert drawn == set(range(8)) - set(EOS)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_a_fault(value):
    assert sample(np.full(20, value, np.float32)) == -FAULT_LOGITS


@settings(max_examples=200, deadline=None)
@given(
    logits=arrays(np.float32, st.integers(30, 90), elements=st.floats(-60, 60, width=32)),
    alternatives=st.integers(0, 20),
    temperature=st.sampled_from([0.0, 1.0, 2.0]),
    suppress_eos=st.booleans(),
    seed=st.integers(0, 2**62),
)
def test_log_probabilities_are_those_of_the_raw_logits(logits, alternatives, temperature, suppress_eos, seed):
    options = {"temperature": temperature, "suppress_eos": suppress_eos, "seed": seed}
    token, words = sample_with_logprobs(logits, 1 + alternatives, **options)
    assert token == sample(logits, **options), "asking changes the answer"
    check_record(unpack_records(words[None])[0], token, logits, alternatives)


def test_a_certain_token_keeps_the_digits_of_its_log_probability():
    logits = np.full(1000, -12.0, np.float32)
    logits[7] = 11.0
    token, words = sample_with_logprobs(logits, 2, temperature=0.0)
    record = unpack_records(words[None])[0]
    assert (token, record.rank, record.likeliest[0][0]) == (7, 1, 7)
    assert record.logprob == pytest.approx(-np.log1p(999 * np.exp(-23.0)), rel=1e-5)


def test_what_cannot_come_has_no_finite_log_probability():
    logits = np.full(40, -np.inf, np.float32)
    logits[[4, 9]] = 1.0
    _, words = sample_with_logprobs(logits, 4)
    likeliest = unpack_records(words[None])[0].likeliest
    assert [token for token, _ in likeliest] == [4, 9, 0]
    assert likeliest[2][1] == -np.inf


def test_a_vocabulary_smaller_than_what_is_asked_for_leaves_no_old_pairs():
    _, words = sample_with_logprobs(np.arange(3, dtype=np.float32), 6)
    likeliest = unpack_records(words[None])[0].likeliest
    assert [token for token, _ in likeliest] == [2, 1, 0, 0, 0]
    assert [value for _, value in likeliest[3:]] == [-np.inf, -np.inf]


def test_exp_is_accurate_over_its_whole_range():
    x = np.linspace(-87, 87, 16 * 4000).astype(np.float32)
    values = x.copy()
    exp_of(values)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(values / exact - 1).max() < 4e-7
