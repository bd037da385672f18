"""What of a ring a front end may touch: all of it to read, its own words to write.

Each range is a memory region of its own in the session's protection domain, so the NIC, not
good will, keeps a front end out of the others' words: an operation elsewhere fails with a
remote access error, and a remote key is worth nothing to any other queue pair.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rdma.staging import Share
from rdma.transport import TransportError
from ring import layout as at
from ring.words import SLOTS_PER_DOORBELL


@dataclass(frozen=True)
class Grant:
    """Words ``[start, start + words)`` of the ring at `address` of the host, under `rkey`."""

    start: int
    words: int
    address: int
    rkey: int
    write: bool

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict) -> Grant:
        """Inverse of `to_json`; `ValueError` for anything else."""
        try:
            return cls(
                int(given["start"]), int(given["words"]), int(given["address"]), int(given["rkey"]),
                bool(given["write"]),
            )  # fmt: skip
        except (KeyError, TypeError, OverflowError, ValueError) as error:
            raise ValueError(f"not a grant: {error!r}") from None


def writable_ranges(share: Share) -> list[tuple[int, int]]:
    """(first word, words) of every piece of the ring that one front end writes, ascending."""
    slots = share.slots
    arena = share.arena + share.arena_start // 2
    arena_end = share.arena + (share.arena_start + share.arena_tokens) // 2
    return sorted(
        [
            (share.line(at.FE_PORT), at.FE_WORDS),
            (share.doorbell, slots // SLOTS_PER_DOORBELL),
            (share.req, slots),
            (share.descriptor, slots * at.DESCRIPTOR_WORDS),
            (arena, arena_end - arena),
        ]
    )


class GrantTable:
    """Finds the grant of an operation."""

    def __init__(self, grants: Sequence[Grant]) -> None:
        self._whole = next((grant for grant in grants if not grant.write), None)
        self._writable = sorted((grant for grant in grants if grant.write), key=lambda grant: grant.start)
        self._starts = [grant.start for grant in self._writable]

    def find(self, write: bool, start: int, words: int) -> Grant:
        """The grant that covers words ``[start, start + words)``; `TransportError` if none does."""
        grant = self._whole
        if write:
            k = bisect_right(self._starts, start) - 1
            grant = self._writable[k] if k >= 0 else None
        if grant is None or start < grant.start or start + words > grant.start + grant.words:
            what = "written" if write else "read"
            raise TransportError(
                f"words {start} to {start + words - 1} of the ring are not ours to be {what}"
            )
        return grant
