"""A request between the event loop and the progress thread: who asked, where it is, how the engine is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rdma.port import Handle
from rdma.status import SchedulerStatus
from rdma.submit import Request
from ring.states import Reason


class EngineGone(RuntimeError):
    """The engine ended, or stopped answering, while requests were in service."""


class Sink(Protocol):
    """Who receives the news of a submission, on the thread that `EngineLink.start` was given."""

    def progress(self, tokens: list[int], reason: Reason, when: float, records: np.ndarray | None) -> None:
        """Tokens came, or the end; `records` are their log-probabilities (`rdma.port.Event`)."""
        ...

    def failed(self, error: Exception) -> None:
        """The request was refused, or the engine is gone."""
        ...


class Submission:
    """One request on its way through the ring.

    Attributes
    ----------
    handle : Handle or None
        Its slot, once it has one.
    seated_at : float
        When it was first seen to have a seat in the batch; 0 before.
    cancelled : bool
    """

    __slots__ = ("cancelled", "give_up", "handle", "request", "seated_at", "sink")

    def __init__(self, request: Request, sink: Sink, give_up: float) -> None:
        self.request, self.sink, self.give_up = request, sink, give_up
        self.handle: Handle | None = None
        self.cancelled = False
        self.seated_at = 0.0


@dataclass(frozen=True, slots=True)
class Health:
    """What the progress thread last saw.

    Attributes
    ----------
    ok : bool
        The scheduler runs and its heartbeat moves.
    reason : str
        Why not.
    status : SchedulerStatus or None
    """

    ok: bool
    reason: str
    status: SchedulerStatus | None = None
