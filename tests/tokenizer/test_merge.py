"""The two ways to merge a word give the same ids, on words of any length and on any vocabulary."""

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer import vocabularies
from tests.tokenizer.texts import random_text
from tokenizer import Tokenizer, Vocabulary, formats
from tokenizer.reference import ReferenceBPE
from tokenizer.splitters import GPT2
from tokenizer.table_builder import build_tables


def _both_ways(vocabulary: Vocabulary) -> tuple[Tokenizer, Tokenizer]:
    by_match = Tokenizer(vocabulary, build_tables(vocabulary))
    by_rank = Tokenizer(vocabulary, build_tables(vocabulary, linear=False))
    return by_match, by_rank


@cache
def _published(name: str) -> tuple[Tokenizer, Tokenizer]:
    return _both_ways(formats.read(vocabularies.path(name)))


@pytest.mark.parametrize("name", ["smollm2", "llama3"])
def test_published_vocabularies(name: str) -> None:
    by_match, by_rank = _published(name)
    rng = random.Random(5)
    words = [
        "".join(rng.choices(alphabet, k=n))
        for alphabet in ("ab", "etaoinsr", "日本語今天")
        for n in (3, 40, 3000)
    ]
    words += [random_text(seed, 400) for seed in range(40)]
    for word in words:
        assert by_match.encode(word).tolist() == by_rank.encode(word).tolist(), ascii(word[:200])


@pytest.mark.parametrize("letter", ["a", "日", "ab", "xyzzy"])
def test_a_word_of_a_megabyte(letter: str) -> None:
    """Long words go through the same code as short ones, and end."""
    by_match, by_rank = _published("smollm2")
    text = letter * (1_000_000 // len(letter.encode()))
    ids = by_match.encode(text)
    assert by_match.decode(ids) == text
    assert np.array_equal(ids, by_rank.encode(text))


def _vocabulary(merges: Sequence[tuple[str, str]]) -> Vocabulary:
    """Vocabulary of the bytes and of `merges` in rank order, of which some may come before their parts."""
    tokens = [bytes([b]) for b in range(256)]
    id_of = {t: i for i, t in enumerate(tokens)}
    rows = []
    for left, right in merges:
        for part in (left, right, left + right):
            if part.encode() not in id_of:
                id_of[part.encode()] = len(tokens)
                tokens.append(part.encode())
        rows.append([id_of[p.encode()] for p in (left, right, left + right)])
    pairs = np.array(rows, np.int32).reshape(-1, 3)
    return Vocabulary(tokens, pairs, np.arange(len(rows), dtype=np.int32), GPT2)


_PARTS = st.text(alphabet="abc", min_size=1, max_size=4)
_MERGES = st.lists(st.tuples(_PARTS, _PARTS), max_size=14, unique_by=lambda m: m)


@settings(deadline=None, max_examples=60)
@given(
    merges=_MERGES, words=st.lists(st.text(alphabet="abc", min_size=1, max_size=24), min_size=1, max_size=8)
)
def test_any_order_of_merges(merges: list[tuple[str, str]], words: list[str]) -> None:
    """Also where a merge's parts are formed by later merges, or by none, or a token in several ways."""
    vocabulary = _vocabulary(merges)
    by_match, by_rank = _both_ways(vocabulary)
    specification = ReferenceBPE(vocabulary)
    for word in words:
        expected = specification.encode_word(word.encode())
        assert by_rank.encode(word).tolist() == expected
        assert by_match.encode(word).tolist() == expected
