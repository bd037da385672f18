"""Which of a front end's own slots are free: no look at the ring in the steady state.

Slots belong to one front end for the life of a ring, and only it empties them, so after one
bulk refresh its own book is exact. The search goes round from a hint: a slot just emptied is
the last to be taken again, and a burst takes neighbours, whose words are written as one.
"""

from __future__ import annotations

import numpy as np

from ring.jit import njit
from ring.layout import CTL_WORDS
from ring.states import DECODE_COMPLETED, EMPTY, is_live, slot_state
from ring.words import ctl_incarnation, ctl_state, next_incarnation, req_incarnation


@njit
def find_free(free, hint, out):
    """Fill `out` with free slots, going round once from `hint`; how many were found.

    Parameters
    ----------
    free : bool[slots]
    out : int64[wanted]
    """
    slots = free.shape[0]
    found = 0
    for step in range(slots):
        if found == out.shape[0]:
            break
        slot = hint + step
        if slot >= slots:
            slot -= slots
        if free[slot]:
            out[found] = slot
            found += 1
    return found


@njit
def refresh(ctl, req, free, incarnation, unreleased):
    """Take the book from a snapshot of the ring; the first slot that contradicts it, or -1.

    A slot is fit for use when the scheduler has nothing to do with it any more: nothing
    live in it, nothing submitted that is still unclaimed.
    """
    for slot in range(free.shape[0]):
        word = ctl[slot * CTL_WORDS]
        state = ctl_state(word)
        settled = ctl_incarnation(word) == req_incarnation(req[slot])
        if is_live(state) or not settled:
            return slot
        incarnation[slot] = ctl_incarnation(word)
        unreleased[slot] = state == DECODE_COMPLETED and slot_state(word, req[slot]) != EMPTY
        free[slot] = True
    return -1


class SlotTracker:
    """The book of one front end's slots, numbered from 0 within its share.

    Attributes
    ----------
    incarnation : int64[slots]
        The last incarnation used.
    free_count : int
    """

    def __init__(self, slots: int) -> None:
        self.incarnation = np.zeros(slots, np.int64)
        self.free_count = 0
        self._free = np.zeros(slots, np.bool_)
        self._hint = 0

    def refresh(self, ctl: np.ndarray, req: np.ndarray) -> np.ndarray:
        """Adopt what a predecessor left; slots it completed but never released, as int64.

        Raises
        ------
        ValueError
            Some slot is in use: its owner still lives or was not drained.
        """
        unreleased = np.zeros(self._free.shape[0], np.bool_)
        bad = refresh(ctl, req, self._free, self.incarnation, unreleased)
        if bad >= 0:
            raise ValueError(
                f"slot {bad} of this front end's share is still in use: another front end holds it, "
                "or its death was not declared"
            )
        self.free_count = self._free.shape[0]
        return np.flatnonzero(unreleased)

    def find(self, wanted: int) -> list[int]:
        """Up to `wanted` free slots, neighbours where possible. Takes none."""
        out = np.empty(min(wanted, self.free_count), np.int64)
        found = find_free(self._free, self._hint, out)
        return out[:found].tolist()

    def take(self, slot: int) -> int:
        """Use a free slot; its new incarnation."""
        self._free[slot] = False
        self.free_count -= 1
        self._hint = slot + 1 if slot + 1 < self._free.shape[0] else 0
        incarnation = int(next_incarnation(int(self.incarnation[slot])))
        self.incarnation[slot] = incarnation
        return incarnation

    def give_back(self, slot: int) -> None:
        """A slot was released: it may be taken again."""
        self._free[slot] = True
        self.free_count += 1
