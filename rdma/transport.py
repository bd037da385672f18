"""How a front end reaches a ring: one-sided reads and writes, nothing else.

A transport runs batches (`rdma.operations`) between the ring and its *staging* memory, which
it allocates because a NIC only touches memory that was registered. The contract, which the
port relies on and `tests/rdma/test_contract.py` checks for each transport:

* operations of a batch take effect in the order of its rows, batches in the order posted;
* a WRITE is visible to whoever acquires a word of a later PUBLISH;
* an eight-byte word is never torn, but words of one READ may be of different moments;
* after `complete`, all posted READs are in the staging memory, all posted WRITEs in the ring;
* rows that depend on what a READ brought go into a batch posted after its `complete`;
* a batch that failed half way may be run again: running a batch twice is harmless.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from rdma.operations import Operations, traffic
from ring import layout as at
from ring.layout import RingGeometry
from ring.sections import layout

DEADLINE_S = 10.0  # default bound of every wait on a peer


class TransportError(RuntimeError):
    """The ring cannot be reached, or refused an operation; the message names the remedy."""


class TransportLost(TransportError):
    """The connection is gone for good: the front end must attach anew."""


class Fenced(TransportError):
    """This front end was declared dead; another may own its slots by now."""


@dataclass(frozen=True)
class RingMap:
    """What a front end must know of a ring before its first operation.

    Attributes
    ----------
    geometry : RingGeometry
    epoch : int
        Changes whenever a ring is made anew.
    max_model_len, vocab_size : int
        Limits of the engine behind the ring, in tokens.
    starts : tuple of int
        First word of each section, by the numbers of `ring.layout`.
    words : int
        Size of the ring.
    """

    geometry: RingGeometry
    epoch: int
    max_model_len: int
    vocab_size: int
    starts: tuple[int, ...] = field(init=False)
    words: int = field(init=False)

    def __post_init__(self) -> None:
        starts, size = layout(self.geometry.sections())
        object.__setattr__(self, "starts", tuple(starts))
        object.__setattr__(self, "words", size)

    @classmethod
    def of(cls, geometry: RingGeometry, info: np.ndarray) -> RingMap:
        """Map of a ring from its geometry and its INFO section."""
        return cls(geometry, int(info[at.I_EPOCH]), int(info[at.I_MAX_MODEL_LEN]), int(info[at.I_VOCAB_SIZE]))


@dataclass
class Counters:
    """What a transport was asked to do since it was made."""

    posts: int = 0
    operations: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    reconnects: int = 0


class Transport(ABC):
    """One-sided access to one ring. Owned by one thread.

    Attributes
    ----------
    name : str
    ring : RingMap
    counters : Counters
    """

    name = "?"

    def __init__(self, ring: RingMap) -> None:
        self.ring = ring
        self.counters = Counters()

    @abstractmethod
    def allocate(self, words: int) -> np.ndarray:
        """Make the staging memory: int64[words], zeroed. Called once, before any batch."""

    @abstractmethod
    def _run(self, batch: Operations) -> None:
        """Start the batch (one chain)."""

    @abstractmethod
    def complete(self, deadline_s: float = DEADLINE_S) -> None:
        """Wait until everything posted is done.

        Raises
        ------
        TransportLost
            It cannot be done any more, or not within the deadline.
        Fenced
            This front end was declared dead meanwhile.
        """

    @abstractmethod
    def identity(self) -> tuple[int, int]:
        """What to sign the front end's line with: process id and start time, or 0 and a session."""

    @abstractmethod
    def holder_gone(self, front_end: int, pid: int, started: int) -> bool:
        """Whether who signed a front end's line with (`pid`, `started`) is confirmed to be no more."""

    @abstractmethod
    def declare_dead(self, front_end: int) -> int:
        """Fence the holder of a front end's line off; the generation to wait for.

        Only after `holder_gone`: a stale heartbeat alone is not death.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up the connection. Closing twice is harmless."""

    def post(self, batch: Operations) -> None:
        """Start a batch and count it; an empty one is no post."""
        if not batch.count:
            return
        read, written = traffic(batch.table, batch.count)
        counters = self.counters
        counters.posts += 1
        counters.operations += batch.count
        counters.bytes_read += 8 * int(read)
        counters.bytes_written += 8 * int(written)
        self._run(batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
