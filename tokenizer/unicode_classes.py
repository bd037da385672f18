"""Unicode categories of the code points, as the reference tokenizers' regular expressions see them."""

from functools import lru_cache
from importlib.resources import files

import numpy as np

CODE_POINTS = 0x110000

#: Disjoint categories of code points.  ``UPPER`` is Lu and Lt, ``LETTER`` is Lm and Lo (letters without
#: case), ``SPACE`` is ``\\s``, ``DIGIT_ONLY`` is numeric for the ``Digits`` pre-tokenizer but not ``\\p{N}``.
CATEGORIES = {
    "OTHER": 0,
    "UPPER": 1,
    "LOWER": 2,
    "LETTER": 3,
    "MARK": 4,
    "NUMBER": 5,
    "DIGIT_ONLY": 6,
    "PUNCTUATION": 7,
    "SYMBOL": 8,
    "SPACE": 9,
}


def _runs(name: str) -> np.ndarray:
    """Value of every code point, from the runs stored under `name`."""
    with files("tokenizer").joinpath("data/character_classes.npz").open("rb") as f:
        stored = np.load(f)
        start, value = stored[f"{name}_start"], stored[name]
    table = np.repeat(value, np.diff(start, append=CODE_POINTS))
    table.flags.writeable = False
    return table


@lru_cache(maxsize=1)
def categories() -> np.ndarray:
    """Category of every code point, uint8 of shape ``(0x110000,)``; values are those of `CATEGORIES`."""
    return _runs("category")


@lru_cache(maxsize=1)
def word_characters() -> np.ndarray:
    """Whether each code point is a word character for added tokens, bool of shape ``(0x110000,)``."""
    return _runs("word")


@lru_cache(maxsize=1)
def reordering_marks() -> np.ndarray:
    """Whether normalisation may decompose or reorder each code point, bool of shape ``(0x110000,)``.

    Marks that Unicode defined after the reference's normaliser was made are not among them.
    """
    return _runs("reorders")
