"""Sampling a token from a row of logits, as `blink_numba.engines.sampling` defines it."""

from __future__ import annotations

import math

import numpy as np

from blink_numba.engines.cpu.logprobs import log_normalizer, write_likeliest, write_sampled
from blink_numba.engines.cpu.simd import add, exp, load, max_lane, maximum, multiply, splat, store
from blink_numba.engines.sampling import (
    FAULT_LOGITS,
    ONE_WEIGHT,
    random_bits,
    share_of,
    target_weight,
)
from graphs.step_io import (
    LOGPROBS,
    SAMPLING_WORDS,
    SEED,
    SUPPRESS_EOS,
    TEMPERATURE_MICRO,
    TOP_K,
    TOP_P_MICRO,
)
from ring.jit import uncounted

LANES = 16
WEIGHT_BITS = 31  # weights are 0 … 2**30
_DIGIT = 8
BUCKETS = 1 << _DIGIT


@uncounted
def _largest(logits, at, count):
    """Largest of `count` logits, a multiple of 16."""
    largest = load(logits, at)
    for k in range(LANES, count, LANES):
        largest = maximum(largest, load(logits, at + k))
    return max_lane(largest)


@uncounted
def _weigh(logits, at, count, largest, temperature_micro, work, weights):
    """Integer weights of the tokens."""
    negative = splat(-largest)
    inverse = splat(np.float32(1e6 / temperature_micro))
    one = splat(np.float32(ONE_WEIGHT))
    for k in range(0, count, LANES):
        scaled = multiply(add(load(logits, at + k), negative), inverse)
        store(work, k, multiply(exp(scaled), one))
    for token in range(count):
        weights[token] = np.int64(work[token] + np.float32(0.5))


@uncounted
def _edge(weights, count, floor, need, by_weight, histogram):
    """Largest weight at or above which lies at least `need`, of tokens of at least `floor`.

    What lies there is weight (`by_weight`) or tokens. A radix descent over the digits of a weight;
    `floor` if all of it is not enough.
    """
    edge, shift = 0, WEIGHT_BITS
    while shift > 0:
        known = shift  # the bits from here on up agree with edge
        shift = max(shift - _DIGIT, 0)
        buckets = 1 << (known - shift)
        for bucket in range(buckets):
            histogram[bucket] = 0
        for token in range(count):
            weight = weights[token]
            if weight >= floor and (weight >> known) == (edge >> known):
                histogram[(weight >> shift) & (buckets - 1)] += weight if by_weight else 1
        bucket = buckets - 1
        while bucket >= 0 and histogram[bucket] < need:
            need -= histogram[bucket]
            bucket -= 1
        if bucket < 0:
            return floor
        edge |= bucket << shift
    return edge


@uncounted
def _total(weights, count, edge):
    total = 0
    for token in range(count):
        if weights[token] >= edge:
            total += weights[token]
    return total


@uncounted
def _draw(weights, count, edge, target):
    """First token, in the order of ids, at which the running sum of kept weights exceeds `target`."""
    running = 0
    for token in range(count):
        if weights[token] >= edge:
            running += weights[token]
            if running > target:
                return token
    return -FAULT_LOGITS


@uncounted
def _first_largest(logits, at, vocab, largest):
    """Lowest id of the tokens with the largest logit."""
    for token in range(vocab):
        if logits[at + token] == largest:
            return token
    return -FAULT_LOGITS


@uncounted
def _choose(logits, at, vocab, sampling, words, position, weights, work, histogram):
    """The token that a row of logits gives, or a fault code negated."""
    count = (vocab + LANES - 1) // LANES * LANES
    largest = _largest(logits, at, count)
    if not math.isfinite(largest):
        return -FAULT_LOGITS
    temperature = sampling[words + TEMPERATURE_MICRO]
    if temperature <= 0:
        return _first_largest(logits, at, vocab, largest)
    _weigh(logits, at, count, largest, temperature, work, weights)
    edge = 1
    if sampling[words + TOP_K] > 0:
        edge = _edge(weights, count, edge, sampling[words + TOP_K], False, histogram)
    if sampling[words + TOP_P_MICRO] < 1_000_000:
        need = share_of(_total(weights, count, edge), sampling[words + TOP_P_MICRO])
        edge = _edge(weights, count, edge, need, True, histogram)
    target = target_weight(_total(weights, count, edge), random_bits(sampling[words + SEED], position))
    return _draw(weights, count, edge, target)


@uncounted
def _hide(logits, at, ids, kept, first):
    """Make tokens impossible; their logits go to ``kept[first:]``."""
    for k in range(ids.shape[0]):
        kept[first + k] = logits[at + ids[k]]
    for k in range(ids.shape[0]):
        logits[at + ids[k]] = -np.inf


@uncounted
def _show(logits, at, ids, kept, first):
    """Undo `_hide`."""
    for k in range(ids.shape[0]):
        logits[at + ids[k]] = kept[first + k]


def sample_row(
    logits, at, vocab, eos_ids, sampling, seat, position, weights, work, histogram, records, record
):
    """Sample from one row.

    Parameters
    ----------
    logits : float32 array
        The row starts at `at` and has room for `vocab` rounded up to 16.
    sampling : int64[seats * SAMPLING_WORDS]
    position : int64
        That the sampled token will take.
    weights : int64[at least vocab rounded up to 16]
    work : float32[at least vocab rounded up to 16, and the number of EOS ids]
    histogram : int64[BUCKETS]
    records : int64 array
        The seat's log-probabilities go to ``records[record:]``, if it wants any (`ring.logprobs`).

    Returns
    -------
    int64
        The token, or a fault code negated.
    """
    words = seat * SAMPLING_WORDS
    count = (vocab + LANES - 1) // LANES * LANES
    for k in range(at + vocab, at + count):
        logits[k] = -np.inf
    pairs, largest, normalizer = sampling[words + LOGPROBS], np.float32(0.0), 0.0
    if pairs > 0:
        largest = _largest(logits, at, count)
        if not math.isfinite(largest):
            return -FAULT_LOGITS
        likeliest = _first_largest(logits, at, vocab, largest)
        normalizer = log_normalizer(logits, at, count, largest, likeliest)
        write_likeliest(logits, at, vocab, pairs - 1, largest, normalizer, records, record)
    hides = sampling[words + SUPPRESS_EOS] != 0
    if hides:
        _hide(logits, at, eos_ids, work, count)
    token = _choose(logits, at, vocab, sampling, words, position, weights, work, histogram)
    if hides:
        _show(logits, at, eos_ids, work, count)
    if pairs > 0 and token >= 0:
        write_sampled(logits, at, vocab, token, largest, normalizer, records, record)
    return token
