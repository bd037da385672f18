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


@lru_cache(maxsize=1)
def categories() -> np.ndarray:
    """Category of every code point, uint8 of shape ``(0x110000,)``; values are those of `CATEGORIES`."""
    with files("tokenizer").joinpath("data/character_classes.npz").open("rb") as f:
        runs = np.load(f)
        start, category = runs["start"], runs["category"]
    table = np.repeat(category, np.diff(start, append=CODE_POINTS))
    table.flags.writeable = False
    return table
