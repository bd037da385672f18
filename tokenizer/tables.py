"""Flat tables of a vocabulary for the kernels, and the workspaces that they write to.

All tables lie in one 64-byte-aligned buffer, so that they are one file on disk and one read at start.
"""

import numpy as np

from tokenizer.kernels import layout
from tokenizer.kernels.memory import PADDING

_LINE = 64
_CACHE_BITS = 16


def aligned(count: int, dtype: np.dtype | type, fill: int = 0) -> np.ndarray:
    """Array of `count` items whose first byte is 64-byte aligned."""
    dtype = np.dtype(dtype)
    raw = np.zeros(count * dtype.itemsize + _LINE, np.uint8)  # pages that nobody writes cost nothing
    start = -raw.ctypes.data % _LINE
    array = raw[start : start + count * dtype.itemsize].view(dtype)
    if fill:
        array.fill(fill)
    return array


class Tables:
    """Tables of one vocabulary.

    Attributes
    ----------
    buffer : ndarray of uint8
        All tables, 64-byte aligned.
    words : ndarray of int64, shape (TABLE_WORDS,)
        The words of `kernels.layout`; those in `addresses` are offsets into `buffer`.
    addresses : tuple of int
    """

    def __init__(self, buffer: np.ndarray, words: np.ndarray, addresses: tuple[int, ...]) -> None:
        self.buffer = buffer
        self.words = words
        self.addresses = addresses

    @property
    def longest_token(self) -> int:
        """Bytes of the longest token."""
        at, size = self.words[layout.LENGTHS], 4 * self.words[layout.VOCAB]
        return int(self.buffer[at : at + size].view(np.int32).max(initial=0))

    def state(self) -> np.ndarray:
        """A new state's words, with the tables' addresses and without a workspace."""
        state = aligned(layout.WORDS, np.int64)
        state[: layout.TABLE_WORDS] = self.words
        state[list(self.addresses)] += self.buffer.ctypes.data
        return state


class Workspace:
    """Buffers of one encoding at a time, for texts of up to `capacity` bytes.

    Attributes
    ----------
    address : int
        Of the state that kernels take.
    out : ndarray of int32
        Where `encode_text` leaves the ids.
    """

    def __init__(self, tables: Tables, capacity: int) -> None:
        self.capacity = capacity
        self._tables = tables
        self._state = tables.state()
        self._buffers: list[np.ndarray] = []
        blocks = capacity // 64 + 2
        self._own(layout.TEXT, capacity + PADDING + _LINE, np.uint8)
        self.out = self._own(layout.OUT, capacity + 64, np.int32)
        for bits in (layout.STARTS, layout.BLANKS, layout.SWALLOWED, layout.DEAD):
            self._own(bits, blocks, np.int64)
        by_rank = capacity  # bytes that `merge_by_rank` may be given: with `LINEAR`, two tokens at most
        if tables.words[layout.FLAGS] & layout.LINEAR:
            by_rank = 2 * tables.longest_token
        for ids in (layout.IDS, layout.RANKS):
            self._own(ids, by_rank + 1, np.int32)
        self._own(layout.LINKS, 2 * by_rank + 2, np.int32)
        self._own(layout.HEAP, 3 * by_rank + 1, np.int64)
        self._own(layout.SCRATCH, capacity + PADDING + _LINE, np.uint8)
        # The kernels may look at the bytes before a word.
        self._state[[layout.TEXT, layout.SCRATCH]] += _LINE
        self._own(layout.CACHE, 8 << _CACHE_BITS, np.int64)
        self._state[layout.CACHE_SHIFT] = 64 - _CACHE_BITS
        self.address = int(self._state.ctypes.data)

    def _own(self, index: int, count: int, dtype: type) -> np.ndarray:
        buffer = aligned(count, dtype)
        self._buffers.append(buffer)
        self._state[index] = buffer.ctypes.data
        return buffer
