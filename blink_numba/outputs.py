"""What generation returns; shaped as vLLM's, so that code moves over unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from blink_numba.vocabularies import text_of
from ring.logprobs import unpack_records
from tokenizer import Tokenizer


@dataclass(slots=True)
class Logprob:
    """What a token had to do with one place of an answer.

    Attributes
    ----------
    logprob : float
        Of the model's own distribution, before temperature, `top_k`, `top_p` and `min_tokens`.
    rank : int
        1 is the likeliest.
    decoded_token : str
    """

    logprob: float
    rank: int
    decoded_token: str


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
    logprobs : list of dict[int, Logprob] or None
        For each token, by id: the one generated, then the likeliest. None if not asked for.
    cumulative_logprob : float or None
        Sum over the tokens generated. None if not asked for.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None

    def add_logprobs(self, tokens: list[int], records: np.ndarray, tokenizer: Tokenizer) -> None:
        """Take in what `records` (`rdma.port.Event`) tell of `tokens`."""
        told = [] if self.logprobs is None else self.logprobs
        total = self.cumulative_logprob or 0.0
        for token, record in zip(tokens, unpack_records(records), strict=True):
            found = {token: Logprob(record.logprob, record.rank, text_of(tokenizer, token))}
            for rank, (other, logprob) in enumerate(record.likeliest, start=1):
                found.setdefault(other, Logprob(logprob, rank, text_of(tokenizer, other)))
            told.append(found)
            total += record.logprob
        self.logprobs, self.cumulative_logprob = told, total


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
