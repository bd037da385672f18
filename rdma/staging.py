"""Where things lie in a front end's staging memory.

One allocation, since one registered region means one key. Inbound and outbound, metadata and
tokens lie apart, so that a burst of prompts never waits for the buffer of a poll. The
outbound metadata *mirrors* the front end's own words of the ring, index by index: neighbours
in the ring are neighbours here, and a burst of neighbouring slots is one write.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rdma.transport import RingMap
from ring import layout as at
from ring.sections import LINE, Section, layout
from ring.words import SLOTS_PER_DOORBELL

EXTENT_WORDS = 1 << 13  # answer tokens fetched from extents in one poll, two a word
PROMPT_WORDS = 1 << 15  # prompt tokens of one chain of submissions, two a word


@dataclass(frozen=True)
class Share:
    """What one front end owns of a ring, and the first word of each piece in the ring.

    Attributes
    ----------
    first_slot, slots : int
    arena_start, arena_tokens : int
        In tokens of the arena.
    """

    ring: RingMap
    front_end: int

    def __post_init__(self) -> None:
        if not 0 <= self.front_end < self.ring.geometry.front_ends:
            raise ValueError(
                f"front_end={self.front_end}: this ring has front ends 0 to "
                f"{self.ring.geometry.front_ends - 1}"
            )

    @property
    def slots(self) -> int:
        return self.ring.geometry.slots_per_front_end

    @property
    def first_slot(self) -> int:
        return self.front_end * self.slots

    @property
    def arena_tokens(self) -> int:
        return self.ring.geometry.arena_share

    @property
    def arena_start(self) -> int:
        return self.front_end * self.arena_tokens

    def line(self, section: int) -> int:
        """This front end's line of FE_PORT, FE_FENCE or FE_SCHED."""
        return self.ring.starts[section] + self.front_end * at.FE_WORDS

    @property
    def ctl(self) -> int:
        return self.ring.starts[at.CTL] + self.first_slot * at.CTL_WORDS

    @property
    def doorbell(self) -> int:
        return self.ring.starts[at.DOORBELL] + self.first_slot // SLOTS_PER_DOORBELL

    @property
    def req(self) -> int:
        return self.ring.starts[at.REQ] + self.first_slot

    @property
    def descriptor(self) -> int:
        return self.ring.starts[at.DESCRIPTOR] + self.first_slot * at.DESCRIPTOR_WORDS

    @property
    def log(self) -> int:
        return self.ring.starts[at.LOG] + self.front_end * self.ring.geometry.log_entries

    @property
    def arena(self) -> int:
        """First word of the whole arena: token t lies in word ``arena + t // 2``."""
        return self.ring.starts[at.ARENA]


class Staging:
    """Offsets (words) and views of the pieces of a front end's staging memory.

    Attributes
    ----------
    fe_sched, ctl : inbound control, adjacent as in the ring
    head : inbound log head after the log was read
    log, extents : inbound tokens
    port, fence, status : lines of the handshake, and the scheduler's counters
    commands : outbound `req` words that cancel or release
    req, doorbell, descriptor : outbound mirrors of submissions
    prompts : outbound tokens
    words : int
        Total size.
    """

    def __init__(self, share: Share) -> None:
        slots = share.slots
        prompt_words = max(PROMPT_WORDS, share.ring.max_model_len)
        pieces = [
            Section("fe_sched", LINE),
            Section("ctl", slots, at.CTL_WORDS),
            Section("head", LINE),
            Section("log", share.ring.geometry.log_entries),
            Section("extents", EXTENT_WORDS),
            Section("port", LINE),
            Section("fence", LINE),
            Section("status", at.STATUS_WORDS),
            Section("commands", slots),
            Section("req", slots),
            Section("doorbell", slots // SLOTS_PER_DOORBELL),
            Section("descriptor", slots, at.DESCRIPTOR_WORDS),
            Section("prompts", prompt_words),
        ]
        starts, self.words = layout(pieces)
        (self.fe_sched, self.ctl, self.head, self.log, self.extents, self.port, self.fence, self.status,
         self.commands, self.req, self.doorbell, self.descriptor, self.prompts) = starts  # fmt: skip
        self._sizes = {piece.name: piece.words for piece in pieces}
        self.memory = np.zeros(0, np.int64)
        self.narrow = np.zeros(0, np.int32)

    def bind(self, memory: np.ndarray) -> None:
        """Use `memory`, int64[words], from the transport."""
        self.memory = memory
        self.narrow = memory.view(np.int32)

    def view(self, name: str) -> np.ndarray:
        """A piece as an int64 view."""
        start = getattr(self, name)
        return self.memory[start : start + self._sizes[name]]

    def prompt_room(self) -> int:
        """Words for prompts of one chain."""
        return self._sizes["prompts"]
