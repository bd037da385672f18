"""What generation returns; shaped as vLLM's, so that code moves over unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class CompletionOutput:
    """One answer.

    Attributes
    ----------
    index : int
        Which of the request's `n`.
    text : str
    token_ids : list of int
        Tokens generated, the one that ended the answer included.
    finish_reason : str or None
        ``stop``, ``length``, ``abort``; None while the answer goes on.
    stop_reason : str or int or None
        The stop string or id that ended it; None for an end-of-sequence id.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times of a request, in seconds of the monotonic clock; None where it did not get there."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(slots=True)
class RequestOutput:
    """A request and its answers.

    Attributes
    ----------
    request_id : str
    prompt : str or None
        None where token ids were given.
    prompt_token_ids : list of int
    outputs : list of CompletionOutput
    finished : bool
    metrics : RequestMetrics
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
