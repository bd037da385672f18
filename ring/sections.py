"""Self-describing word buffers: one int64 array whose head lists its sections.

The ring, the scheduler's state and the step buffers are each one contiguous int64 array.
Its first words say what it is, and where every section starts and ends, so a peer that
knows only the address can find its way, and compiled code needs no constants of a
configuration: one compilation serves every size.

======================  =============================================
word                    content
======================  =============================================
0                       magic of the kind of buffer
1                       version of its layout
2                       size in words
3                       number of sections ``n``
4 + 2k, 5 + 2k          start and length of section ``k``, in words
======================  =============================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ring.jit import njit

MAGIC, VERSION, SIZE, COUNT, TABLE = 0, 1, 2, 3, 4
LINE = 8  # words in a cache line: sections start on one, so no two writers share a line


@dataclass(frozen=True)
class Section:
    """A named run of words. `width` words an entry, `count` entries."""

    name: str
    count: int
    width: int = 1

    @property
    def words(self) -> int:
        return self.count * self.width


class BufferError(ValueError):
    """A buffer is not what its reader expected (wrong magic, version or size)."""


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def layout(sections: list[Section]) -> tuple[list[int], int]:
    """Start word of each section and the total size in words."""
    starts, at = [], _round_up(TABLE + 2 * len(sections), LINE)
    for section in sections:
        starts.append(at)
        at += _round_up(max(section.words, 1), LINE)
    return starts, at


def format_buffer(words: np.ndarray, magic: int, version: int, sections: list[Section]) -> None:
    """Write the head of a buffer. The magic goes last: a reader never sees half a table.

    Parameters
    ----------
    words : int64[n]
        Zeroed memory of at least ``layout(sections)[1]`` words.
    """
    starts, size = layout(sections)
    if words.shape[0] < size:
        raise BufferError(f"buffer has {words.shape[0]} words, its sections need {size}")
    words[VERSION], words[SIZE], words[COUNT] = version, size, len(sections)
    for k, (start, section) in enumerate(zip(starts, sections, strict=True)):
        words[TABLE + 2 * k] = start
        words[TABLE + 2 * k + 1] = section.words
    words[MAGIC] = magic


def check_buffer(words: np.ndarray, magic: int, version: int, what: str) -> None:
    """Raise `BufferError` unless `words` is a whole buffer of this kind and version."""
    if words.shape[0] < TABLE or int(words[MAGIC]) != magic:
        raise BufferError(f"not a {what}: wrong magic word")
    if int(words[VERSION]) != version:
        raise BufferError(f"{what} has layout version {int(words[VERSION])}, this build speaks {version}")
    if int(words[SIZE]) > words.shape[0]:
        raise BufferError(f"{what} is cut short: {words.shape[0]} of {int(words[SIZE])} words")


@njit(inline="always")  # a CUDA device function may not return a view of its own making
def section(words, k):
    """Section `k` of a buffer, as an int64 view."""
    start = words[TABLE + 2 * k]
    return words[start : start + words[TABLE + 2 * k + 1]]
