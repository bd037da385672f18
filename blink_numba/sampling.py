"""What a request asks of the sampler and of the scheduler, checked."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blink_numba.errors import ParameterError
from ring.layout import MAX_LOGPROBS, MAX_STOP_IDS

if TYPE_CHECKING:
    from rdma.port import Request

MAX_STOPS = 64  # stop strings of a request
MAX_STOP_LENGTH = 1024  # characters of one
SEED_MASK = (1 << 62) - 1
MAX_PRIORITY = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of one request; names and meaning are vLLM's.

    Attributes
    ----------
    n : int
        Answers to make; answer ``i`` uses seed ``seed + i``.
    max_tokens : int or None
        Most tokens of an answer; None: as many as the context has room for.
    min_tokens : int
        End-of-sequence ids, stop ids and stop strings are held off before this many tokens.
    temperature : float
        0 takes the likeliest token.
    top_p : float
        In (0, 1]; keep the likeliest tokens that hold this much probability.
    top_k : int
        Keep this many of the likeliest tokens; 0 or -1: all.
    seed : int or None
        The same seed gives the same answer, whatever runs beside it; None: a random one.
    stop : str or sequence of str
        Texts that end the answer and are not part of it.
    stop_token_ids : sequence of int
        Ids that end the answer; at most 16.
    ignore_eos : bool
        Go on after an end-of-sequence id.
    include_stop_str_in_output : bool
        Keep the stop string that ended the answer.
    skip_special_tokens : bool
        Leave control tokens out of the text.
    logprobs : int or None
        Give the log-probability of each token, and so many of the likeliest ones beside it, 0 to 20:
        of the model's own distribution, before temperature, `top_k`, `top_p` and `min_tokens`.
    priority : int
        Smaller is sooner, for policies that look at it; 0 … 2**31 - 1.
    tenant : int
        Whose request it is, for policies that look at it.
    deadline_s : float or None
        End the request after so many seconds, finished or not.

    Raises
    ------
    ParameterError
        Names the parameter that is out of range.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: str | tuple[str, ...] | list[str] | None = None
    stop_token_ids: tuple[int, ...] | list[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    priority: int = 0
    tenant: int = 0
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        _whole("n", self.n, 1, 128)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1)
        _whole("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError(
                "min_tokens", f"min_tokens={self.min_tokens} exceeds max_tokens={self.max_tokens}"
            )
        _real("temperature", self.temperature, 0.0, 100.0)
        _real("top_p", self.top_p, 0.0, 1.0)
        if self.top_p < 1e-6:
            raise ParameterError("top_p", f"top_p={self.top_p} must be in (0, 1]")
        _whole("top_k", self.top_k, -1)
        if self.seed is not None:
            _whole("seed", self.seed, -(1 << 63), (1 << 63) - 1)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _whole("priority", self.priority, 0, MAX_PRIORITY)
        _whole("tenant", self.tenant, 0, MAX_PRIORITY)
        if self.deadline_s is not None:
            _real("deadline_s", self.deadline_s, 1e-3, 1e6)
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "stop_token_ids", _stop_ids(self.stop_token_ids))

    def request(self, prompt: np.ndarray, *, index: int, seed: int, max_model_len: int) -> Request:
        """The ring's form of answer `index` to `prompt`.

        Parameters
        ----------
        prompt : int32[n]
        index : int
            Which of the `n` answers.
        seed : int
            Seed of answer 0 (`base_seed`).
        max_model_len : int
            Tokens that prompt and answer may have together.
        """
        from rdma.port import Request

        return Request(
            prompt=prompt,
            max_tokens=self.tokens_allowed(len(prompt), max_model_len),
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            seed=(seed + index) & SEED_MASK,
            ignore_eos=self.ignore_eos,
            stop_ids=tuple(self.stop_token_ids or ()),
            deadline_s=self.deadline_s,
            priority=self.priority,
            tenant=self.tenant,
            logprobs=self.logprobs,
        )

    def base_seed(self) -> int:
        """Seed of answer 0: the one asked for, or a random one."""
        return (self.seed if self.seed is not None else secrets.randbits(62)) & SEED_MASK

    def tokens_allowed(self, prompt_tokens: int, max_model_len: int) -> int:
        """Length limit of an answer to a prompt of so many tokens.

        Raises
        ------
        ParameterError
            ``prompt`` or ``max_tokens``: the context has no room for it.
        """
        room = max_model_len - prompt_tokens
        if room < 1:
            raise ParameterError(
                "prompt",
                f"the prompt has {prompt_tokens} tokens; this model's context is {max_model_len} tokens, "
                "and an answer needs at least one",
            )
        if self.max_tokens is None:
            return room
        if self.max_tokens > room:
            raise ParameterError(
                "max_tokens",
                f"max_tokens={self.max_tokens} does not fit: the prompt has {prompt_tokens} tokens and the "
                f"context {max_model_len}; at most {room} are left for the answer",
            )
        return self.max_tokens


def _whole(name: str, value: object, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ParameterError(name, f"{name} must be an integer, got {value!r}")
    if value < low or (high is not None and value > high):
        upper = "" if high is None else f" and at most {high}"
        raise ParameterError(name, f"{name}={value} must be at least {low}{upper}")


def _real(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise ParameterError(name, f"{name} must be a number, got {value!r}")
    if not math.isfinite(value) or not low <= value <= high:
        raise ParameterError(name, f"{name}={value} must lie between {low:g} and {high:g}")


def _stops(stop: object) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else _sequence("stop", stop)
    if len(stops) > MAX_STOPS:
        raise ParameterError("stop", f"{len(stops)} stop strings; at most {MAX_STOPS} are taken")
    for text in stops:
        if not isinstance(text, str) or not text:
            raise ParameterError("stop", "a stop string must be a text that is not empty")
        if len(text) > MAX_STOP_LENGTH:
            raise ParameterError(
                "stop", f"a stop string has {len(text)} characters; at most {MAX_STOP_LENGTH} are taken"
            )
    return stops


def _stop_ids(ids: object) -> tuple[int, ...]:
    tokens = _sequence("stop_token_ids", ids)
    if len(tokens) > MAX_STOP_IDS:
        raise ParameterError("stop_token_ids", f"{len(tokens)} stop ids; at most {MAX_STOP_IDS} are taken")
    for token in tokens:
        _whole("stop_token_ids", token, 0, (1 << 31) - 1)
    return tuple(int(token) for token in tokens)


def _sequence(name: str, value: object) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ParameterError(name, f"{name} must be a list, got {value!r}")
    return tuple(value)
