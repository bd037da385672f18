"""The form in which log-probabilities travel."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ring.logprobs import NO_CHANCE, pack_pair, unpack_records, write_pairs

SURPRISES = st.lists(st.floats(0.0, 65536.0, width=32) | st.just(float("inf")), min_size=1, max_size=21)


def bits_of(surprise: float) -> int:
    return int(np.float32(surprise).view(np.int32))


@given(surprises=SURPRISES, first=st.integers(0, 2**31 - 32))
def test_what_is_packed_written_and_read_is_the_same(surprises, first):
    words = np.array([pack_pair(bits_of(s), first + k) for k, s in enumerate(surprises)], np.int64)
    tokens = np.zeros(2 * len(words) + 4, np.int32)
    write_pairs(tokens, 2, words, 0, len(words))
    assert not tokens[:2].any()
    assert not tokens[-2:].any()
    record = unpack_records(tokens[2:-2].view(np.int64).reshape(1, -1))[0]
    assert (record.rank, record.logprob) == (first, -surprises[0])
    assert record.likeliest == [(first + 1 + k, -s) for k, s in enumerate(surprises[1:])]


@given(one=st.floats(0.0, 65536.0, width=32), other=st.floats(0.0, 65536.0, width=32))
def test_words_are_in_the_order_of_surprise(one, other):
    assert (pack_pair(bits_of(one), 5) < pack_pair(bits_of(other), 5)) == (one < other)
    assert pack_pair(bits_of(one), 5) < pack_pair(NO_CHANCE, 0)
    assert pack_pair(NO_CHANCE, 2**31 - 1) < 1 << 63, "bit 63 stays clear"
