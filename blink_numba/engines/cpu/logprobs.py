"""Log-probabilities of a row of logits, as `ring.logprobs` defines them."""

from __future__ import annotations

import math

import numpy as np

from blink_numba.engines.cpu.simd import add, exp, load, splat, sum_lanes
from ring.jit import uncounted
from ring.logprobs import ID_MASK, NO_CHANCE, pack_pair

LANES = 16
_BLOCK = 64 * LANES  # summed in float32; blocks are summed in float64


@uncounted
def log_normalizer(logits, at, count, largest, token):
    """Log of the sum of ``exp(logit - largest)``, float64; `token` has the largest logit.

    The sum leaves `token` out and comes back by log1p: the log-probability of a token that is all
    but certain keeps its digits.
    """
    negative = splat(-largest)
    logits[at + token] = -np.inf
    others = 0.0
    for start in range(0, count, _BLOCK):
        partial = splat(np.float32(0.0))
        for k in range(start, min(start + _BLOCK, count), LANES):
            partial = add(partial, exp(add(load(logits, at + k), negative)))
        others += np.float64(sum_lanes(partial))
    logits[at + token] = largest
    return math.log1p(others)


@uncounted
def surprise_of(logit, largest, normalizer):
    """Bits of a token's surprise, an integer."""
    if logit == -np.inf:
        return NO_CHANCE
    surprise = np.float32(max(np.float64(largest) - np.float64(logit) + normalizer, 0.0))
    return np.int64(surprise.view(np.int32))


@uncounted
def write_likeliest(logits, at, vocab, wanted, largest, normalizer, records, record):
    """Pairs of the `wanted` likeliest tokens to ``records[record + 1:]``; equals by their ids.

    A vocabulary of fewer leaves pairs that cannot come.
    """
    first, kept = record + 1, 0
    if wanted == 0:
        return
    for token in range(vocab):
        logit = logits[at + token]
        if kept == wanted and logit <= logits[at + (records[first + kept - 1] & ID_MASK)]:
            continue
        pair = pack_pair(surprise_of(logit, largest, normalizer), token)
        place = min(kept, wanted - 1)
        while place > 0 and records[first + place - 1] > pair:
            records[first + place] = records[first + place - 1]
            place -= 1
        records[first + place] = pair
        kept = min(kept + 1, wanted)
    for place in range(kept, wanted):
        records[first + place] = pack_pair(NO_CHANCE, 0)


@uncounted
def write_sampled(logits, at, vocab, token, largest, normalizer, records, record):
    """The pair of the token sampled to ``records[record]``."""
    logit = logits[at + token]
    rank = 1
    for other in range(vocab):
        rank += logits[at + other] > logit
    records[record] = pack_pair(surprise_of(logit, largest, normalizer), rank)
