"""Faults on the way to a ring, within the transport's rules: delay, tearing, repetition, loss.

A wire splits a read into pieces of different moments, an error of a queue pair leaves a
prefix of a batch done and has the whole run again, a connection ends, and a batch may run as
late as its `complete`. `FaultyTransport` does this to any transport at the points that a
chooser picks, so that one wrapper serves random tests, Hypothesis and an exhaustive model
checker.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rdma.operations import Operations
from rdma.transport import DEADLINE_S, Transport, TransportLost


def _nothing() -> None:
    return None


@dataclass
class Faults:
    """What goes wrong, and who decides.

    Attributes
    ----------
    choose : callable
        ``choose(n)`` returns 0 … n-1; 0 is always the choice without a fault.
    meanwhile : callable
        Called at every gap: whatever else happens in the world, such as scheduler turns.
    pieces : int
        At most so many pieces an operation is torn into; words within a row have no order.
    repeats : int
        At most so many times a batch is broken off and run again.
    """

    choose: Callable[[int], int]
    meanwhile: Callable[[], None] = _nothing
    pieces: int = 3
    repeats: int = 1


class FaultyTransport(Transport):
    """Another transport, with `Faults` on the way.

    Attributes
    ----------
    lost : bool
        Set it, and every use from then on raises `TransportLost`.
    """

    def __init__(self, inner: Transport, faults: Faults) -> None:
        super().__init__(inner.ring)
        self.name = f"{inner.name}+faults"
        self.lost = False
        self._inner = inner
        self._faults = faults
        self._piece = Operations(1)
        self._delayed: list[list[list[int]]] = []

    def allocate(self, words: int) -> np.ndarray:
        return self._inner.allocate(words)

    def _run(self, batch: Operations) -> None:
        self._check()
        # Taken as late as allowed: staged words that change before `complete` show as faults.
        self._delayed.append(batch.table[: batch.count].tolist())
        if self._faults.choose(2):
            self._run_delayed()

    def _run_delayed(self) -> None:
        while self._delayed:
            rows = self._delayed[0]
            for _ in range(self._faults.repeats):
                broken_off_at = self._faults.choose(len(rows) + 1)
                if broken_off_at == 0:
                    break
                self.counters.reconnects += 1
                for row in rows[:broken_off_at]:
                    self._run_row(row)
            for row in rows:
                self._run_row(row)
            self._delayed.pop(0)

    def _run_row(self, row: list[int]) -> None:
        kind, remote, local, words = row
        bounds = sorted({0, words, *(self._faults.choose(words + 1) for _ in range(self._faults.pieces - 1))})
        spans = list(itertools.pairwise(bounds))
        while spans:
            start, end = spans.pop(self._faults.choose(len(spans)))
            self._faults.meanwhile()
            self._check()
            self._piece.clear()
            self._piece.add(kind, remote + start, local + start, end - start)
            self._inner.post(self._piece)
            self._inner.complete()

    def _check(self) -> None:
        if self.lost:
            raise TransportLost("the connection was lost, as the test asked")

    def complete(self, deadline_s: float = DEADLINE_S) -> None:
        self._faults.meanwhile()
        self._run_delayed()
        self._check()
        self._inner.complete(deadline_s)

    def identity(self) -> tuple[int, int]:
        return self._inner.identity()

    def holder_gone(self, front_end: int, pid: int, started: int) -> bool:
        return self._inner.holder_gone(front_end, pid, started)

    def declare_dead(self, front_end: int) -> int:
        return self._inner.declare_dead(front_end)

    def close(self) -> None:
        self._inner.close()
