"""Log-probabilities of tokens, from the engine's logits to a front end.

A request that wants them says in its descriptor how many *pairs* a token gets (`Q_LOGPROBS`; 0:
none, else one more than the alternatives it asked for) and gives, at `Q_LOGPROBS_START`, an extent
of the arena with room for all tokens of its answer. A token's record is

============  ===============================================================
pair          id and surprise
============  ===============================================================
0             rank of the token sampled (1: the likeliest), its surprise
1 … pairs-1   the likeliest tokens, the first first; their surprise
============  ===============================================================

The *surprise* of a token is its log-probability negated, in nats: of the logits as the model gave
them, before temperature, top-k, top-p and the suppression of end-of-sequence ids. It travels as the
bits of a float32, which has its sign bit clear, so to the protocol it is one more small integer,
and pairs packed into a word, ``surprise << 32 | id``, are in order from the likeliest on.

The engine leaves words in the step buffer; the scheduler copies them into the extent, before it
releases what counts the token. In the arena a pair is two int32: the id, then the surprise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ring.jit import njit, uncounted

ID_MASK = (1 << 32) - 1
NO_CHANCE = 0x7F800000  # surprise of what cannot come: infinite


@njit
def pack_pair(surprise, token):
    """A pair as a word; `surprise` as the bits of a float32 that is not negative."""
    return (surprise << 32) | token


@uncounted
def write_pairs(tokens, to, words, start, count):
    """Copy `count` packed pairs from ``words[start:]`` to ``tokens[to:]``, two int32 each."""
    for k in range(count):
        word = words[start + k]
        tokens[to + 2 * k] = word & ID_MASK
        tokens[to + 2 * k + 1] = word >> 32


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one place of an answer.

    Attributes
    ----------
    logprob : float
        Of the token sampled, in nats.
    rank : int
        Of the token sampled; 1 is the likeliest.
    likeliest : list of (int, float)
        Ids and log-probabilities of the likeliest tokens, the first first.
    """

    logprob: float
    rank: int
    likeliest: list[tuple[int, float]]


def unpack_records(words: np.ndarray) -> list[TokenLogprobs]:
    """Records of packed pairs.

    Parameters
    ----------
    words : int64[tokens, pairs]
    """
    ids = (words & ID_MASK).tolist()
    logprobs = (-((words >> 32).astype(np.int32).view(np.float32))).tolist()
    return [
        TokenLogprobs(values[0], names[0], list(zip(names[1:], values[1:], strict=True)))
        for names, values in zip(ids, logprobs, strict=True)
    ]
