"""The scheduler's STATUS section as a front end sees it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ring import layout as at


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """Heartbeat and counters of the scheduler; each word of its own moment.

    `heartbeat` moves while the scheduler lives; `phase` is one of ``ring.layout.PHASE_*``;
    `error` is 0 or the code of the fault that stopped it.
    """

    heartbeat: int
    error: int
    error_arg: int
    phase: int
    steps: int
    launches: int
    windows: int
    retries: int
    prefills: int
    decodes: int
    tokens: int
    waiting: int
    seats_used: int
    blocks_free: int
    finished: int
    preemptions: int
    claims: int

    @classmethod
    def of(cls, words: np.ndarray) -> SchedulerStatus:
        """From a copy of the section, int64[32]."""
        return cls(
            heartbeat=int(words[at.S_HEARTBEAT]),
            error=int(words[at.S_ERROR]),
            error_arg=int(words[at.S_ERROR_ARG]),
            phase=int(words[at.S_PHASE]),
            steps=int(words[at.S_STEPS]),
            launches=int(words[at.S_LAUNCHES]),
            windows=int(words[at.S_WINDOWS]),
            retries=int(words[at.S_RETRIES]),
            prefills=int(words[at.S_PREFILLS]),
            decodes=int(words[at.S_DECODES]),
            tokens=int(words[at.S_TOKENS]),
            waiting=int(words[at.S_WAITING]),
            seats_used=int(words[at.S_SEATS_USED]),
            blocks_free=int(words[at.S_BLOCKS_FREE]),
            finished=int(words[at.S_FINISHED]),
            preemptions=int(words[at.S_PREEMPTIONS]),
            claims=int(words[at.S_CLAIMS]),
        )
