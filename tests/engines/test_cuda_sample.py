"""Sampling against its definition in NumPy, in lockstep and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba.cuda.dispatcher", reason="needs the numba-cuda target")

from blink_numba.engines.cuda import sample
from blink_numba.engines.sampling import (
    FAULT_LOGITS,
    MOST_TOKENS,
    ONE_WEIGHT,
    random_bits,
    share_of,
    target_weight,
)
from graphs.step_io import DONE, FAULT, RECORD_WORDS, SAMPLING_WORDS, TICKET, record_at
from ring.logprobs import unpack_records
from tests.cuda_reference import sampled_token
from tests.logprobs import check_record

RNG = np.random.default_rng(4)
OFF = 1_000_000


def sample_row(run, logits, *arguments, **options):
    """Token of one row and the fault word."""
    return sample_with_logprobs(run, logits, 0, *arguments, **options)[:2]


def sample_with_logprobs(
    run, logits, pairs, temperature=0, top_p=OFF, top_k=0, seed=1, suppress=0, position=7, eos=(0,)
):
    """Token of one row, the fault word, and its `pairs` pairs."""
    words = np.zeros(2 * SAMPLING_WORDS, np.int64)
    words[SAMPLING_WORDS : SAMPLING_WORDS + 6] = temperature, top_p, top_k, seed, suppress, pairs
    out, fault = np.full(2, -7, np.int64), np.zeros(1, np.int64)
    control, records = np.zeros(16, np.int64), np.full(4 * RECORD_WORDS, -7, np.int64)
    control[TICKET] = 5
    arguments = (
        np.array([logits], np.float32), np.array([1], np.int32), np.array([position], np.int32), words,
        np.array(eos, np.int32), fault, control, out, records,
    )  # fmt: skip
    run(sample.sample, 1, sample.THREADS, arguments)
    assert out[0] == -7, "another seat's token was written"
    own = slice(record_at(5, 2, 1), record_at(5, 2, 1) + pairs)
    found = records[own].copy()
    records[own] = -7
    assert (records == -7).all(), "somebody else's record was written"
    return int(out[1]), int(fault[0]), found


def test_greedy_takes_the_lowest_of_equals(run):
    logits = RNG.standard_normal(1500)
    logits[[20, 700, 1400]] = 9.0
    assert sample_row(run, logits) == (20, 0)


def test_suppressed_eos_is_never_taken(run):
    logits = RNG.standard_normal(600)
    logits[[5, 6]] = 50.0
    assert sample_row(run, logits, eos=(5, 6), suppress=1)[0] not in (5, 6)
    assert sample_row(run, logits, eos=(5, 6), suppress=1, temperature=OFF)[0] not in (5, 6)
    assert sample_row(run, logits, eos=(5, 6))[0] == 5


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_without_a_finite_largest_logit_is_a_fault(run, value):
    assert sample_row(run, np.full(40, value)) == (0, FAULT_LOGITS)


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, OFF), (5, OFF), (1, OFF), (0, 600_000), (40, 900_000), (5000, 1)]
)
@pytest.mark.parametrize("vocab", [33, 1300])
def test_draws_follow_the_definition(run, vocab, top_k, top_p):
    logits = (RNG.standard_normal(vocab) * 3).astype(np.float32)
    for seed, position in ((1, 7), (2**40 + 3, 8)):
        token, fault = sample_row(run, logits, 800_000, top_p, top_k, seed, position=position)
        assert fault == 0
        assert token == sampled_token(logits, 800_000, top_k, top_p, seed, position + 1)


def test_ties_at_the_edge_all_stay(run):
    logits = np.full(64, -30.0, np.float32)
    logits[10:14] = 2.0
    drawn = {sample_row(run, logits, OFF, OFF, 2, seed)[0] for seed in range(12)}
    assert drawn <= {10, 11, 12, 13}
    assert len(drawn) > 2


@pytest.mark.parametrize(("vocab", "alternatives"), [(600, 0), (700, 5), (1500, 20)])
@pytest.mark.parametrize(("temperature", "suppress"), [(0, 0), (0, 1), (OFF, 0), (1_500_000, 1)])
def test_log_probabilities_are_those_of_the_raw_logits(run, vocab, alternatives, temperature, suppress):
    logits = (RNG.standard_normal(vocab) * 3).astype(np.float32)
    logits[[5, 6]] = logits.max() + 1.0, logits.max() + 2.0
    logits[[40, 552, 41]] = logits.max() - 1.5  # equals, two of them one thread's
    options = {"temperature": temperature, "suppress": suppress, "eos": (5, 6)}
    token, fault, words = sample_with_logprobs(run, logits, 1 + alternatives, **options)
    assert (token, fault) == sample_row(run, logits, **options), "asking changes the answer"
    record = unpack_records(words[None])[0]
    check_record(record, token, logits, alternatives)
    expected = sorted(range(vocab), key=lambda other: (-logits[other], other))[:alternatives]
    assert [other for other, _ in record.likeliest] == expected


def test_a_certain_token_keeps_the_digits_of_its_log_probability(run):
    logits = np.full(1000, -12.0, np.float32)
    logits[7] = 11.0
    token, _, words = sample_with_logprobs(run, logits, 2)
    record = unpack_records(words[None])[0]
    assert (token, record.rank, record.likeliest[0][0]) == (7, 1, 7)
    assert record.logprob == pytest.approx(-np.log1p(999 * np.exp(-23.0)), rel=1e-5)


def test_what_cannot_come_has_no_finite_log_probability(run):
    logits = np.full(40, -np.inf, np.float32)
    logits[[4, 9]] = 1.0
    record = unpack_records(sample_with_logprobs(run, logits, 4)[2][None])[0]
    assert [token for token, _ in record.likeliest] == [4, 9, 0]
    assert record.likeliest[2][1] == -np.inf


def test_random_bits_are_philox():
    """Known answers of Random123 for philox2x32-10 (its first word's upper 31 bits)."""
    assert random_bits(0, 0) == 0xFF1DAE59 >> 1
    assert random_bits.py_func(0xFFFFFFFFFFFFFFFF, 0xFFFFFFFF) == 0x2C3F628B >> 1
    assert random_bits.py_func(0x85A308D3_13198A2E, 0x243F6A88) == 0xDD7CE038 >> 1


def test_shares_and_targets_stay_in_range():
    for total in (1, 7, 1 << 30, (1 << 48) - 1, MOST_TOKENS * ONE_WEIGHT):
        assert 0 <= target_weight(total, 0) <= target_weight(total, (1 << 31) - 1) < total
        assert share_of(total, 0) == 1
        assert share_of(total, OFF - 1) <= total


def test_finish_publishes_the_ticket_after_the_fault(run):
    control, fault = np.zeros(16, np.int64), np.array([FAULT_LOGITS], np.int64)
    control[TICKET] = 41
    run(sample.finish_step, 1, 32, (control, fault))
    assert (control[DONE], control[FAULT], fault[0]) == (41, FAULT_LOGITS, 0)
