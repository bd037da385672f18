"""Normalisation to NFC as the reference tokenizers do it.

Their normaliser is of an older Unicode version than Python's: marks defined later do not take part in
canonical ordering there. So the text is cut at such marks, and Python normalises what is between them.
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


def nfc(text: str) -> str:
    """`text` in normalisation form C."""
    if text.isascii() or unicodedata.is_normalized("NFC", text):
        return text
    return "".join([unicodedata.normalize("NFC", part) for part in _later_marks().split(text)])
