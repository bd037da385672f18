"""The answers of one HTTP request, from submission to their last token."""

from __future__ import annotations

import asyncio

import numpy as np

from blink_numba.answer import Answer
from blink_numba.frontend.errors import ApiError
from blink_numba.frontend.link import EngineLink
from blink_numba.frontend.logprobs import LogprobLog
from blink_numba.frontend.metrics import Metrics
from blink_numba.frontend.submission import EngineGone, Submission
from blink_numba.sampling import SamplingParams
from rdma.errors import ArenaFull, BadParameter, PromptTooLong, RingFull
from ring.states import Reason
from tokenizer import Tokenizer

# How an answer's end is told to the client where it is no ordinary end.
_FAILURES = {
    Reason.DEADLINE: (504, "the request's deadline passed before its answer was finished"),
    Reason.ERROR: (500, "the engine failed while this request was in service"),
    Reason.REJECTED: (500, "the scheduler refused the request"),
    Reason.ABORTED: (503, "the front end was declared dead while this request was in service"),
    Reason.SHUTDOWN: (503, "the server is shutting down"),
    Reason.CANCELLED: (503, "the request was cancelled"),
}
_API_NAMES = {"stop_ids": "stop_token_ids"}
_FINISHED_AS = {Reason.DEADLINE: "deadline", Reason.CANCELLED: "abort"}


class Choice:
    """One answer of a call; the sink of its submission. Lives on the event loop's thread.

    Attributes
    ----------
    index : int
        Of the answer in the response.
    answer : Answer
        Its text so far.
    text : str
        Text not taken yet.
    logprobs : LogprobLog or None
        Log-probabilities not taken yet, if the request wants any.
    """

    __slots__ = (
        "answer", "call", "first_at", "index", "last_at", "logprobs", "prompt_tokens", "submission", "text",
    )  # fmt: skip

    def __init__(
        self, call: Call, index: int, prompt_tokens: int, answer: Answer, logprobs: LogprobLog | None
    ) -> None:
        self.call, self.index, self.prompt_tokens, self.answer = call, index, prompt_tokens, answer
        self.logprobs = logprobs
        self.submission: Submission | None = None
        self.text = ""
        self.first_at: float | None = None
        self.last_at = 0.0

    def take(self) -> str:
        """The text that came since the last call."""
        text, self.text = self.text, ""
        return text

    def take_logprobs(self) -> dict | None:
        """The log-probabilities that came since the last call; None for none."""
        return None if self.logprobs is None else self.logprobs.take()

    @property
    def finished(self) -> bool:
        return self.answer.finish is not None

    def progress(self, tokens: list[int], reason: Reason, when: float, records: np.ndarray | None) -> None:
        answer, call = self.answer, self.call
        if answer.finish is not None or call.error is not None:
            return
        if tokens:
            before = answer.tokens
            self.text += answer.push(tokens)
            taken = answer.tokens - before
            if self.logprobs is not None and records is not None:
                self.logprobs.add(tokens[:taken], records[:taken])
            self._count(taken, when)
        if answer.finish is not None:  # at a stop string, before the scheduler knows
            assert self.submission is not None
            call.link.cancel(self.submission)
        elif reason is not Reason.NONE:
            if reason in _FAILURES:
                call.metrics.finished[_FINISHED_AS.get(reason, "error")] += 1
                status, message = _FAILURES[reason]
                call.fail(ApiError(status, message, code=reason.name.lower()))
                return
            self.text += answer.end(reason)
        if answer.finish is not None:
            self._finish(when)
            call.unfinished -= 1
        call.wake(self)

    def failed(self, error: Exception) -> None:
        if not self.finished:
            self.call.metrics.finished["error"] += 1
            self.call.fail(as_api_error(error))

    def _count(self, tokens: int, when: float) -> None:
        metrics = self.call.metrics
        metrics.generation_tokens += tokens
        if self.first_at is None:
            self.first_at = when
            metrics.ttft.observe(when - self.call.arrived)
            tokens -= 1
        if tokens:
            # Tokens that came together share the time since the last ones.
            metrics.itl.observe((when - self.last_at) / tokens if self.last_at else 0.0, tokens)
        self.last_at = when

    def _finish(self, when: float) -> None:
        metrics = self.call.metrics
        metrics.e2e.observe(when - self.call.arrived)
        metrics.prompt_length.observe(self.prompt_tokens)
        metrics.answer_length.observe(self.answer.tokens)
        if self.first_at is not None:
            assert self.submission is not None
            # Between two looks a request may get both its seat and its first token.
            seated = min(self.submission.seated_at or self.first_at, self.first_at)
            metrics.queue.observe(seated - self.call.arrived)
            metrics.prefill.observe(self.first_at - seated)
            metrics.decode.observe(when - self.first_at)
            metrics.inference.observe(when - seated)
        metrics.finished[self.answer.finish or "abort"] += 1


class Call:
    """All answers of one HTTP request.

    Parameters
    ----------
    link : EngineLink
    metrics : Metrics
    arrived : float
        When the request arrived, in seconds of the monotonic clock.

    Attributes
    ----------
    choices : list of Choice
    prompt_tokens : int
        Of all prompts, each counted once.
    error : ApiError or None
        What ended the call early.
    """

    def __init__(self, link: EngineLink, metrics: Metrics, arrived: float) -> None:
        self.link, self.metrics, self.arrived = link, metrics, arrived
        self.choices: list[Choice] = []
        self.prompt_tokens = 0
        self.unfinished = 0
        self.error: ApiError | None = None
        self._ready: list[Choice] = []
        self._waiter: asyncio.Future[None] | None = None

    def submit(self, prompts: list[np.ndarray], params: SamplingParams, tokenizer: Tokenizer,
               eos_ids: frozenset[int], max_model_len: int, *, chat: bool) -> None:  # fmt: skip
        """Send every prompt `params.n` times; `chat` is the shape of log-probabilities.

        Raises
        ------
        ApiError
            503 without an engine.
        blink_numba.errors.ParameterError
            A prompt or length does not fit the context; nothing is submitted then.
        """
        seed = params.base_seed()
        pairs = []
        for prompt in prompts:
            for copy in range(params.n):
                request = params.request(prompt, index=copy, seed=seed, max_model_len=max_model_len)
                answer = Answer(
                    tokenizer.stream_decoder(skip_special=params.skip_special_tokens),
                    stops=params.stop,  # type: ignore[arg-type]  # a tuple since its check
                    eos_ids=frozenset() if params.ignore_eos else eos_ids,
                    stop_ids=frozenset(params.stop_token_ids or ()),
                    min_tokens=params.min_tokens,
                    include_stop=params.include_stop_str_in_output,
                )
                wanted = params.logprobs is not None
                log = LogprobLog(tokenizer, chat, params.skip_special_tokens) if wanted else None
                choice = Choice(self, len(self.choices), len(prompt), answer, log)
                self.choices.append(choice)
                pairs.append((request, choice))
            self.prompt_tokens += len(prompt)
        self.unfinished = len(pairs)
        try:
            submissions = self.link.submit(pairs)
        except EngineGone as error:
            raise as_api_error(error) from None
        for choice, submission in zip(self.choices, submissions, strict=True):
            choice.submission = submission
        self.metrics.prompt_tokens += self.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        return sum(choice.answer.tokens for choice in self.choices)

    async def news(self) -> list[Choice]:
        """Answers that have new text or ended, once there are some.

        Raises
        ------
        ApiError
            The call failed.
        """
        if self.error is None and not self._ready:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.error is not None:
            raise self.error
        ready, self._ready = self._ready, []
        return ready

    async def complete(self) -> None:
        """Wait for the end of all answers; raises as `news` does."""
        while self.unfinished:
            await self.news()

    def cancel(self) -> None:
        """Stop everything that is not finished: the client is gone, or one answer failed."""
        for choice in self.choices:
            if not choice.finished and choice.submission is not None and not choice.submission.cancelled:
                self.link.cancel(choice.submission)

    def abandon(self) -> None:
        """The client is gone: cancel, and count its answers as aborted."""
        if self.error is None:
            self.metrics.finished["abort"] += sum(not choice.finished for choice in self.choices)
            self.cancel()

    def wake(self, choice: Choice) -> None:
        """`choice` has news."""
        if choice not in self._ready:
            self._ready.append(choice)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: ApiError) -> None:
        """End the call with `error` and stop its other answers."""
        if self.error is None:
            self.error = error
            self.cancel()
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of a refusal or a failure behind the server."""
    if isinstance(error, RingFull | ArenaFull):
        return ApiError(503, str(error), code="ring_full", retry_after_s=1)
    if isinstance(error, EngineGone):
        return ApiError(503, f"no engine: {error}", code="engine_unavailable", retry_after_s=2)
    if isinstance(error, PromptTooLong):
        return ApiError(400, str(error), param="prompt", code="context_length_exceeded")
    if isinstance(error, BadParameter):
        return ApiError(400, str(error), param=_API_NAMES.get(error.parameter, error.parameter))
    return ApiError(500, f"{type(error).__name__}: {error}")
