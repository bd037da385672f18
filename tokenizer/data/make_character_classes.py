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
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

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


def word_characters() -> np.ndarray:
    """Code points beside which an added token with ``single_word`` does not match."""
    tokenizer = Tokenizer(models.BPE(vocab={"?": 0}, merges=[]))
    tokenizer.add_tokens([AddedToken("!", single_word=True, normalized=False)])
    found = np.zeros(CODE_POINTS, bool)
    scalars = [c for c in _scalar_values() if c != ord("!")]
    for start in range(0, len(scalars), _CHUNK):
        chunk = scalars[start : start + _CHUNK]
        encoding = tokenizer.encode("".join(f"!{chr(c)}\n" for c in chunk))
        offsets = (o for i, (o, _) in zip(encoding.ids, encoding.offsets) if i != 0)
        matched = {offset // 3 for offset in offsets}
        found[[c for n, c in enumerate(chunk) if n not in matched]] = True
    return found


def reordering_marks() -> np.ndarray:
    """Code points that the normaliser decomposes, or moves across some mark in canonical ordering."""
    nfd = normalizers.NFD()
    anchors = [chr(c) for c in (0x0316, 0x0300, 0x0334, 0x0345)]  # classes 220, 230, 1 and 240
    found = np.zeros(CODE_POINTS, bool)
    for c in _scalar_values():
        pairs = [("x" + chr(c) + a, "x" + a + chr(c)) for a in anchors]
        found[c] = any(nfd.normalize_str(p) != p or nfd.normalize_str(q) != q for p, q in pairs)
    return found


def _as_runs(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    start = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return {f"{name}_start": start.astype(np.int32), name: values[start]}


def main() -> None:
    """Compute the classes and write each as runs: the first code points, and the values."""
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
    runs = _as_runs("category", category)
    runs |= _as_runs("word", word_characters()) | _as_runs("reorders", reordering_marks())
    path = Path(__file__).with_name("character_classes.npz")
    np.savez_compressed(path, allow_pickle=False, **runs)
    print(f"{path.name}: {len(runs['category'])} runs of categories")


if __name__ == "__main__":
    main()
