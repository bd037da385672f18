"""Normalisation to NFC as the reference tokenizers do it.

Their normaliser is of an older Unicode version than Python's: marks defined later do not take part in
canonical ordering there. So the text is cut at such marks, and Python normalises what is between them.
Python orders a run of marks in quadratic time, so long runs are ordered before it sees them.
"""

import re
import unicodedata
from functools import lru_cache

import numpy as np

from tokenizer.unicode_classes import CODE_POINTS, reordering_marks

#: Vowel sign that Python composes with U+11935 and the older version does not.
_LATER_COMPOSITION = 0x11930


@lru_cache(maxsize=1)
def _later_marks() -> re.Pattern[str]:
    known = reordering_marks()
    later = [c for c in np.flatnonzero(~known[:CODE_POINTS]).tolist() if unicodedata.combining(chr(c))]
    return re.compile("([" + "".join(map(chr, [*later, _LATER_COMPOSITION])) + "])")


#: Runs of so many marks or more are ordered here.
_LONG_RUN = 32
#: Characters of combining class 0 that stand for two combining ones.
_DOUBLE_MARKS = frozenset("\u0f73\u0f75\u0f81")


@lru_cache(maxsize=1)
def _long_run() -> re.Pattern[str]:
    marks = [*filter(unicodedata.combining, map(chr, range(CODE_POINTS))), *_DOUBLE_MARKS]
    return re.compile(f"[{''.join(marks)}]{{{_LONG_RUN},}}")


def _has_long_run(text: str) -> bool:
    # Such a run has a mark at a place divisible by its length: mostly, one character of 32 is looked at.
    sample = text[::_LONG_RUN]
    if _DOUBLE_MARKS.isdisjoint(sample) and not any(map(unicodedata.combining, sample)):
        return False
    return _long_run().search(text) is not None


def _ordered(run: re.Match[str]) -> str:
    """The marks of `run` in canonical order."""
    marks = "".join([unicodedata.normalize("NFD", c) for c in run[0]])
    return "".join(sorted(marks, key=unicodedata.combining))


def nfc(text: str) -> str:
    """`text` in normalisation form C."""
    if text.isascii():
        return text
    if _has_long_run(text):
        parts = [_long_run().sub(_ordered, part) for part in _later_marks().split(text)]
    elif unicodedata.is_normalized("NFC", text):
        return text
    else:
        parts = _later_marks().split(text)
    return "".join([unicodedata.normalize("NFC", part) for part in parts])
