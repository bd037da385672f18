"""Allocator of a front end's share of the token arena.

Two-level segregated fit: free extents sit in bins of (power of two, eighth of it), a bit a
bin, so that allocation and release look at a fixed number of bins however many extents live,
and neighbours join again on release. Units are cache lines of the arena: the prompt extent
is the front end's to write and the answer's is the scheduler's, so none may share a line.
"""

from __future__ import annotations

from ring.sections import LINE

TOKENS_PER_LINE = 2 * LINE
_SUB_BITS = 3  # bins per power of two: 8, so a fit wastes at most an eighth of its extent
_SAME_BIN_LOOKS = 8


def _bin(size: int) -> int:
    """The bin whose extents are at least as large as its smallest member."""
    if size < 1 << _SUB_BITS:
        return size
    power = size.bit_length() - 1
    return ((power - _SUB_BITS + 1) << _SUB_BITS) + ((size >> (power - _SUB_BITS)) & ((1 << _SUB_BITS) - 1))


class Arena:
    """Free-space map of arena tokens ``[start, start + tokens)``.

    Parameters
    ----------
    start, tokens : int
        The share, in tokens; inner bounds are rounded to whole lines.
    """

    def __init__(self, start: int, tokens: int) -> None:
        first = -(-start // TOKENS_PER_LINE)
        last = (start + tokens) // TOKENS_PER_LINE
        self.lines = max(last - first, 0)
        self.free_lines = 0
        self._bins: dict[int, dict[int, None]] = {}  # bin → starts of its extents
        self._occupied = 0  # bit b: bin b has an extent
        self._size_at: dict[int, int] = {}  # start → lines, free extents only
        self._start_of_end: dict[int, int] = {}
        self._taken: dict[int, int] = {}  # start → lines, allocated extents
        if self.lines:
            self._put(first, self.lines)

    def allocate(self, tokens: int) -> int | None:
        """First token of a new extent of at least `tokens` tokens; None without room."""
        lines = max(-(-tokens // TOKENS_PER_LINE), 1)
        start = self._find(lines)
        if start is None:
            return None
        size = self._take(start)
        if size > lines:
            self._put(start + lines, size - lines)
        self._taken[start] = lines
        return start * TOKENS_PER_LINE

    def release(self, first_token: int) -> None:
        """Give an extent back; it joins its free neighbours."""
        start = first_token // TOKENS_PER_LINE
        lines = self._taken.pop(start)
        before = self._start_of_end.get(start)
        if before is not None:
            lines += self._take(before)
            start = before
        after = self._size_at.get(start + lines)
        if after is not None:
            lines += self._take(start + lines)
        self._put(start, lines)

    def _find(self, lines: int) -> int | None:
        number = _bin(lines)
        for looks, start in enumerate(self._bins.get(number, ())):
            if self._size_at[start] >= lines:
                return start
            if looks == _SAME_BIN_LOOKS:
                break
        larger = self._occupied >> (number + 1)
        if not larger:
            return None
        number += 1 + ((larger & -larger).bit_length() - 1)
        return next(iter(self._bins[number]))

    def _put(self, start: int, lines: int) -> None:
        number = _bin(lines)
        self._bins.setdefault(number, {})[start] = None
        self._occupied |= 1 << number
        self._size_at[start] = lines
        self._start_of_end[start + lines] = start
        self.free_lines += lines

    def _take(self, start: int) -> int:
        lines = self._size_at.pop(start)
        del self._start_of_end[start + lines]
        number = _bin(lines)
        del self._bins[number][start]
        if not self._bins[number]:
            self._occupied &= ~(1 << number)
        self.free_lines -= lines
        return lines
