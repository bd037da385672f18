"""Words are found 64 bytes at a time: what is special must be seen at every position of a block."""

from functools import cache

import pytest

from tests.tokenizer import vocabularies
from tokenizer import Tokenizer, load
from tokenizer.reference import ReferenceBPE

_SPECIAL = (
    "’s",
    " ’s",
    "’’s",
    "“Hi”",
    "é’s",
    "　　x",
    "  x",
    "'ſx",
    "\n  \n y",
    "!\n\n y",
    "\xa0y",
    "😀y",
    "x😀\n",
    "\u2028\n\xa0z",
    "12345678",
    "１２３４５６x",
    "'ll've",
    "don't",
    " \t\n",
    "!  ",
    "一二。三",
    "\u0301\u0301",
    "カタ・カナ",
    "\x00\x04",
)


@cache
def _both(name: str) -> tuple[Tokenizer, ReferenceBPE]:
    ours = load(vocabularies.path(name))
    return ours, ReferenceBPE(ours.vocabulary)


@pytest.mark.parametrize("name", ["smollm2", "llama3"])
@pytest.mark.parametrize("special", _SPECIAL, ids=ascii)
def test_every_position(name: str, special: str) -> None:
    ours, reference = _both(name)
    for position in range(54, 70):
        for before in "y !\n1":
            text = ("a b" * 30)[:position] + before + special + "q c" * 20
            assert ours.encode(text).tolist() == reference.encode(text), (position, before)


@pytest.mark.parametrize("name", ["smollm2", "llama3"])
def test_runs_across_many_blocks(name: str) -> None:
    ours, reference = _both(name)
    for run in (" ", "\n", "\t", "!", "1", "é", "　", "日", "\n ", " \n", "! ", "a\n\n  "):
        for length in (63, 64, 65, 200):
            text = "x" + run * length + "y"
            assert ours.encode(text).tolist() == reference.encode(text), (run, length)
