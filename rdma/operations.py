"""One-sided operations as a table of numbers, so that every transport runs the same batch.

A row is ``(kind, remote, local, words)``: `remote` counts int64 words from the start of the
ring, `local` int64 words from the start of the staging memory. Compiled code appends rows as
easily as Python does, `shm` runs a table in one call, `verbs` turns it into one chain.
"""

from __future__ import annotations

import numpy as np

from ring.jit import njit

READ = 0  # ring → staging
WRITE = 1  # staging → ring: data, ordered before every later PUBLISH
PUBLISH = 2  # staging → ring: each word a release, all of the batch before it is visible first

KIND, REMOTE, LOCAL, WORDS = range(4)


class OperationsFull(RuntimeError):
    """A batch was asked to hold more operations than it was made for."""


class Operations:
    """A batch under construction.

    Attributes
    ----------
    table : int64[capacity, 4]
        The rows; the first `count` are in use.
    count : int
    """

    __slots__ = ("count", "table")

    def __init__(self, capacity: int) -> None:
        self.table = np.zeros((capacity, 4), np.int64)
        self.count = 0

    def clear(self) -> None:
        """Start over; memory is kept."""
        self.count = 0

    def take(self, other: Operations) -> None:
        """Move all rows of another batch here, replacing what was here."""
        self.count = other.count
        if other.count:
            self.table[: other.count] = other.table[: other.count]
            other.count = 0

    def add(self, kind: int, remote: int, local: int, words: int) -> None:
        """Append one operation.

        A row that continues the one before (same kind, both sides adjacent) is merged into it.
        """
        if self.count:
            last = self.table[self.count - 1]
            if (
                last[KIND] == kind
                and last[REMOTE] + last[WORDS] == remote
                and last[LOCAL] + last[WORDS] == local
            ):
                last[WORDS] += words
                return
        if self.count == self.table.shape[0]:
            raise OperationsFull(f"a batch holds {self.count} operations: post it before adding more")
        self.table[self.count] = (kind, remote, local, words)
        self.count += 1


@njit
def append(table, count, kind, remote, local, words):
    """Append a row to a table from compiled code; the new count. The caller checks the room."""
    table[count, KIND] = kind
    table[count, REMOTE] = remote
    table[count, LOCAL] = local
    table[count, WORDS] = words
    return count + 1


@njit
def traffic(table, count):
    """Words read and words written by the first `count` rows."""
    read, written = 0, 0
    for row in range(count):
        if table[row, KIND] == READ:
            read += table[row, WORDS]
        else:
            written += table[row, WORDS]
    return read, written
