"""Write ``character_classes.npz``: the Unicode category of every code point as Hugging Face sees it.

The pre-tokenizer patterns name Unicode categories (``\\p{L}``, ``\\s``, ...), and what those contain is
decided by the Unicode version of the regular-expression engine behind them.  ``unicodedata`` and the
``regex`` package disagree with the engine inside ``tokenizers`` on thousands of code points, so the classes
are read out of ``tokenizers`` itself.

Run ``python -m tokenizer.data.make_character_classes`` after a change of the ``tokenizers`` release that the
tests compare with.
"""

from pathlib import Path

import numpy as np
from tokenizers import Regex, pre_tokenizers

from tokenizer.unicode_classes import CATEGORIES, CODE_POINTS

_CHUNK = 1 << 16
_PATTERNS = {
    "UPPER": r"[\p{Lu}\p{Lt}]",
    "LOWER": r"\p{Ll}",
    "LETTER": r"[\p{Lm}\p{Lo}]",
    "MARK": r"\p{M}",
    "NUMBER": r"\p{N}",
    "PUNCTUATION": r"\p{P}",
    "SYMBOL": r"\p{S}",
    "SPACE": r"\s",
}


def _scalar_values() -> list[int]:
    return [c for c in range(CODE_POINTS) if not 0xD800 <= c <= 0xDFFF]


def members(pattern: str) -> np.ndarray:
    """Code points that `pattern` matches, as a bool array, by removing them from a text of all of them."""
    found = np.zeros(CODE_POINTS, bool)
    scalars = _scalar_values()
    found[scalars] = True
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    for start in range(0, len(scalars), _CHUNK):
        text = "".join(map(chr, scalars[start : start + _CHUNK]))
        for piece, _ in split.pre_tokenize_str(text):
            found[[ord(c) for c in piece]] = False
    return found


def numeric() -> np.ndarray:
    """Code points that the ``Digits`` pre-tokenizer isolates (Rust's ``char::is_numeric``)."""
    found = np.zeros(CODE_POINTS, bool)
    digits = pre_tokenizers.Digits(individual_digits=True)
    scalars = _scalar_values()
    for start in range(0, len(scalars), _CHUNK):
        text = "." + ".".join(map(chr, scalars[start : start + _CHUNK]))
        for piece, _ in digits.pre_tokenize_str(text):
            if len(piece) == 1 and piece != ".":
                found[ord(piece)] = True
    return found


def main() -> None:
    """Compute the classes and write them as runs: ``start`` code point and ``category`` of each run."""
    category = np.zeros(CODE_POINTS, np.uint8)
    for name, pattern in _PATTERNS.items():
        matched = members(pattern)
        if category[matched].any():
            raise SystemExit(f"{name} overlaps another category: the splitters assume disjoint ones")
        category[matched] = CATEGORIES[name]
    digits = numeric()
    # Rust's tables are of another Unicode version than the regular expressions': a code point that only
    # Digits isolates is a category of its own.
    category[digits & (category != CATEGORIES["NUMBER"])] = CATEGORIES["DIGIT_ONLY"]
    if (~digits & (category == CATEGORIES["NUMBER"])).any():
        raise SystemExit("a \\p{N} code point is not numeric for Digits: add a category for it")
    start = np.flatnonzero(np.diff(category, prepend=np.uint8(255)))
    path = Path(__file__).with_name("character_classes.npz")
    np.savez_compressed(path, start=start.astype(np.int32), category=category[start])
    print(f"{path.name}: {len(start)} runs")


if __name__ == "__main__":
    main()
