"""What every engine's sampling means: integers, so that no order of summation can change a token.

Of a row of logits (float32, EOS ids at -inf where `suppress_eos` is set) with temperature T > 0:

1. The *weight* of a token is ``round(2^30 · exp((logit - largest) / T))``, an integer; a token
   less than 2^-31 times as likely as the likeliest weighs nothing and is never drawn.
2. *top-k* keeps the tokens whose weight is at least the k-th largest (ties at the edge all stay);
   0 is off.
3. *top-p* then keeps, of those, the tokens whose weight is at least the largest edge above which
   lies the share p of their weight (again with all ties); 1,000,000 millionths is off.
4. The token drawn is the first, in the order of ids, at which the running sum of kept weights
   exceeds `target_weight` of their total and of one random number.

The random number is a function of the request's seed and of the position the token will take
(Philox 2×32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), so an
answer does not depend on batch, seat, chunking or preemption.

Temperature 0 is greedy: the largest logit, the lowest id among equals.
"""

from __future__ import annotations

from ring.jit import njit

ONE_WEIGHT = 1 << 30  # weight of the likeliest token
MOST_TOKENS = 1 << 18  # of a vocabulary: where all are equally likely, their weights add up to 2^48
RANDOM_BITS = 31

# error codes in a step's FAULT word
FAULT_LOGITS = 1  # a sampled row has no finite largest logit
FAULT_INPUT = 2  # a token id or position outside the engine's shapes

_MULTIPLIER, _WEYL = 0xD256D193, 0x9E3779B9
_ROUNDS = 10


@njit
def random_bits(seed, position):
    """31 random bits of the token at `position` of a request with `seed`.

    Parameters
    ----------
    seed : int64
        Non-negative; its upper half is part of the counter.
    position : int64
        0 … 2^32 - 1.
    """
    left, right, key = position & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF
    for _ in range(_ROUNDS):
        # the 64-bit product in two parts, each within int64
        low_part = _MULTIPLIER * (left & 0xFFFF)
        high_part = _MULTIPLIER * (left >> 16) + (low_part >> 16)
        high = high_part >> 16
        low = ((high_part & 0xFFFF) << 16) | (low_part & 0xFFFF)
        left, right = high ^ key ^ right, low
        key = (key + _WEYL) & 0xFFFFFFFF
    return left >> 1


@njit
def target_weight(total, bits):
    """The share of `total` (at most 2^48) that a draw's running sum must exceed: 0 … total - 1."""
    return (((total >> 16) * bits) >> 15) + (((total & 0xFFFF) * bits) >> RANDOM_BITS)


@njit
def share_of(total, millionths):
    """Least weight that is at least `millionths` of `total` (at most 2^48), at least 1."""
    whole, rest = total // 1_000_000, total % 1_000_000
    return max(whole * millionths + (rest * millionths + 999_999) // 1_000_000, 1)
