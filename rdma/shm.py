"""The transport of a front end on the engine's host: the ring is mapped, a batch is a loop."""

from __future__ import annotations

import os

import numpy as np

from rdma.fencing import declare_dead
from rdma.operations import KIND, LOCAL, PUBLISH, READ, REMOTE, WORDS, Operations
from rdma.transport import DEADLINE_S, RingMap, Transport, TransportError
from ring.atomics import load_acquire, store_relaxed, store_release
from ring.jit import njit
from ring.memory import RingMemory, process_start_ticks


@njit
def execute(table, count, ring, staging):
    """Run the first `count` rows in order; the first row out of bounds, or -1.

    Parameters
    ----------
    table : int64[n, 4]
    ring, staging : int64[…]
    """
    for row in range(count):
        remote, local, words = table[row, REMOTE], table[row, LOCAL], table[row, WORDS]
        if remote < 0 or local < 0 or words < 0:
            return row
        if remote + words > ring.shape[0] or local + words > staging.shape[0]:
            return row
        kind = table[row, KIND]
        if kind == READ:
            for word in range(words):
                # pairs with the scheduler's releases of control records and log heads
                staging[local + word] = load_acquire(ring, remote + word)
        elif kind == PUBLISH:
            for word in range(words):
                store_release(ring, remote + word, staging[local + word])
        else:
            for word in range(words):
                store_relaxed(ring, remote + word, staging[local + word])
    return -1


class ShmTransport(Transport):
    """Access to a ring mapped into this process.

    Parameters
    ----------
    memory : RingMemory
        Closed with the transport.
    """

    name = "shm"

    def __init__(self, memory: RingMemory) -> None:
        super().__init__(RingMap.of(memory.geometry, memory.view.info))
        self.memory = memory
        self._words = memory.words
        self._staging = np.zeros(0, np.int64)

    @classmethod
    def attach(cls, name: str, *, deadline_s: float = 0.0) -> ShmTransport:
        """Attach to the ring named `name`; waits up to `deadline_s` seconds for it."""
        return cls(RingMemory.attach(name, deadline_s=deadline_s))

    def allocate(self, words: int) -> np.ndarray:
        self._staging = np.zeros(words, np.int64)
        return self._staging

    def _run(self, batch: Operations) -> None:
        failed = execute(batch.table, batch.count, self._words, self._staging)
        if failed >= 0:
            kind, remote, local, words = batch.table[failed].tolist()
            raise TransportError(
                f"operation {failed} of the batch (kind {kind}: {words} words at {remote}, staging {local}) "
                f"lies outside the ring of {self._words.shape[0]} words or the staging memory"
            )

    def complete(self, deadline_s: float = DEADLINE_S) -> None:
        """Nothing to wait for: a batch has run when its post returns."""

    def identity(self) -> tuple[int, int]:
        return os.getpid(), process_start_ticks(os.getpid()) or 0

    def holder_gone(self, front_end: int, pid: int, started: int) -> bool:
        # pid 0: on another host; only who runs its connection can tell, and then declares it dead
        return pid > 0 and process_start_ticks(pid) != started

    def declare_dead(self, front_end: int) -> int:
        return declare_dead(self.memory.view, front_end)

    def close(self) -> None:
        self._words = self._staging = np.zeros(0, np.int64)
        self.memory.close()
