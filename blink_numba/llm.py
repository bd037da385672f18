"""Offline generation: an engine in this process, used without a server."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import queue
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from blink_numba.answer import Answer
from blink_numba.errors import EngineStartError, GenerationError, ParameterError
from blink_numba.frontend.connector import ShmConnector
from blink_numba.frontend.link import EngineLink
from blink_numba.frontend.submission import EngineGone, Submission
from blink_numba.interrupts import Interrupts, held_back
from blink_numba.outputs import CompletionOutput, RequestMetrics, RequestOutput
from blink_numba.sampling import SamplingParams
from blink_numba.vocabularies import load_tokenizer
from ring.states import Reason
from tokenizer import Tokenizer

Prompt = str | Sequence[int] | np.ndarray
Conversation = Sequence[Mapping[str, Any]]
START_S = 120.0
_numbers = itertools.count()


class _Pending:
    """A request in service and the output that grows from it.

    The progress thread only queues news; whoever waits for them applies them.
    """

    def __init__(self, output: RequestOutput, params: SamplingParams, tokenizer: Tokenizer,
                 tell: Callable[[tuple], object]) -> None:  # fmt: skip
        self.output, self.params = output, params
        self.submissions: list[Submission] = []
        self.answers = [
            Answer(
                tokenizer.stream_decoder(skip_special=params.skip_special_tokens),
                stops=params.stop,  # type: ignore[arg-type]  # a tuple since its check
                eos_ids=frozenset() if params.ignore_eos else frozenset(tokenizer.eos_ids),
                stop_ids=frozenset(params.stop_token_ids or ()),
                min_tokens=params.min_tokens,
                include_stop=params.include_stop_str_in_output,
            )
            for _ in output.outputs
        ]
        self._tell = tell
        self._tokenizer = tokenizer
        self.failure: Exception | None = None

    def sink(self, index: int) -> _Sink:
        return _Sink(self, index)

    def tell(
        self, index: int, tokens: list[int], reason: Reason, when: float, records: np.ndarray | None = None
    ) -> None:
        self._tell((self, index, tokens, reason, when, records))

    def apply(self, link: EngineLink, index: int, tokens: list[int], reason: Reason, when: float,
              records: np.ndarray | None) -> None:  # fmt: skip
        """Add news to the output; raises `GenerationError` for an end that is none of the answer's own."""
        answer, completion = self.answers[index], self.output.outputs[index]
        if answer.finish is not None:
            return
        if tokens:
            if self.output.metrics.first_token_time is None:
                self.output.metrics.first_token_time = when
            before = answer.tokens
            completion.text += answer.push(tokens)
            taken = answer.tokens - before
            completion.token_ids += tokens[:taken]
            if records is not None:
                completion.add_logprobs(tokens[:taken], records[:taken], self._tokenizer)
        if answer.finish is not None:
            link.cancel(self.submissions[index])
        elif reason in (Reason.STOP, Reason.LENGTH, Reason.DEADLINE):
            completion.text += answer.end(reason)
        elif reason is not Reason.NONE:
            raise GenerationError(f"request {self.output.request_id} ended early: {reason.name.lower()}")
        completion.finish_reason, completion.stop_reason = answer.finish, answer.stop_reason
        if all(completion.finished() for completion in self.output.outputs):
            self.output.finished = True
            self.output.metrics.finished_time = when


class _Sink:
    """Receives the news of one answer, on the progress thread."""

    __slots__ = ("_index", "_pending")

    def __init__(self, pending: _Pending, index: int) -> None:
        self._pending, self._index = pending, index

    def progress(self, tokens: list[int], reason: Reason, when: float, records: np.ndarray | None) -> None:
        self._pending.tell(self._index, tokens, reason, when, records)

    def failed(self, error: Exception) -> None:
        self._pending.failure = error
        self._pending.tell(self._index, [], Reason.ERROR, time.monotonic())


class LLM:
    """A model ready to generate. A context manager; leaves no thread, process or shared memory.

    Parameters
    ----------
    model : str
        A model's name, a GGUF file or a Hugging Face folder.
    backend : {"auto", "cpu", "cuda"}
        ``auto`` takes the GPU where one works.
    tokenizer : str, optional
        Name or path of another tokenizer than the model's own.
    max_model_len : int, optional
        Most tokens of prompt and answer together.
    max_num_seqs : int, optional
        Most requests in the batch.
    dummy : bool
        Random weights in the model's shape.
    slots : int
        Slots of the ring; more requests than that wait their turn.
    on_progress : callable, optional
        Called with a line for each step of the start.
    **engine
        Further fields of `blink_numba.runtime.EngineConfig`.

    Raises
    ------
    blink_numba.errors.EngineStartError

    Examples
    --------
    >>> with LLM("smollm2") as llm:
    ...     output = llm.generate("The ring is", SamplingParams(temperature=0, max_tokens=8))[0]
    ...     print(output.outputs[0].text)
    """

    def __init__(self, model: str = "smollm2", *, backend: Literal["auto", "cpu", "cuda"] = "auto",
                 tokenizer: str | None = None, max_model_len: int | None = None,
                 max_num_seqs: int | None = None, dummy: bool = False, slots: int = 256,
                 on_progress: Callable[[str], None] = lambda line: None, **engine: Any) -> None:  # fmt: skip
        from blink_numba.runtime import EngineConfig, LocalEngine
        from blink_numba.runtime.local import make_backend

        self.tokenizer = load_tokenizer(tokenizer or model)
        config = EngineConfig(
            model=model, backend=backend, ring_name=f"llm-{os.getpid()}-{next(_numbers)}", dummy=dummy,
            max_model_len=max_model_len, max_seats=max_num_seqs, slots=slots, **engine,
        )  # fmt: skip
        prepared = make_backend(config, on_progress)  # compiles: may be interrupted, leaves nothing
        with ExitStack() as undo:
            with held_back():
                local = LocalEngine(config, on_progress, backend=prepared)
                self._link = EngineLink(ShmConnector(config.ring_name), queue_timeout_s=float("inf"))
                # Engine and link end with this object, or with the interpreter, whatever comes first.
                self._process = os.getpid()
                self._finalizer = weakref.finalize(self, _end, local, self._link, self._process)
                atexit.register(self._finalizer)
                undo.callback(self.close)
            self._link.start()
            self._wait_for_engine()
            undo.pop_all()
        self.max_model_len = self._link.max_model_len

    def _wait_for_engine(self) -> None:
        give_up = time.monotonic() + START_S
        while not self._link.health.ok:
            if time.monotonic() >= give_up:
                raise EngineStartError(f"the engine does not answer: {self._link.health.reason}")
            time.sleep(0.01)

    # --- generation ---

    def generate(self, prompts: Prompt | Sequence[Prompt],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
                 progress: bool | None = None) -> list[RequestOutput]:  # fmt: skip
        """Answer prompts, all at once.

        Parameters
        ----------
        prompts : str, token ids, or a sequence of either
        sampling_params : SamplingParams or sequence of SamplingParams, optional
            One for all, or one for each prompt.
        progress : bool, optional
            Show a progress bar; for several prompts on a terminal by default.

        Returns
        -------
        list of RequestOutput
            In the order of the prompts.

        Raises
        ------
        ParameterError
            A prompt or parameter makes no sense; nothing was submitted.
        GenerationError
            A request could not be finished; the others were cancelled.
        """
        texts: list[Any] = [prompts] if _is_one(prompts) else list(prompts)
        return self._run(texts, self._tokens, _one_each(sampling_params, len(texts)), progress)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations; as `generate`, with the model's chat template.

        Parameters
        ----------
        messages : conversation or sequence of conversations
            A conversation is a sequence of ``{"role": …, "content": …}``.
        """
        conversations: list[Any] = (
            [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        )

        def tokens(conversation: Conversation) -> tuple[str | None, np.ndarray]:
            text = self.tokenizer.apply_chat_template(
                conversation,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,  # type: ignore[arg-type]
            )
            return str(text), self.tokenizer.encode(str(text), parse_special=True)

        params = _one_each(sampling_params, len(conversations))
        return self._run(conversations, tokens, params, progress)

    async def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None
                     ) -> AsyncIterator[RequestOutput]:  # fmt: skip
        """Answer one prompt, yielding its output whenever it grew; cancelled when the iteration ends early.

        The same output object is yielded each time, longer than before.
        """
        loop = asyncio.get_running_loop()
        news: asyncio.Queue = asyncio.Queue()
        params = sampling_params or SamplingParams()
        pending: list[_Pending] = []
        try:
            with held_back():
                pending = self._submit(
                    [self._tokens(prompt)],
                    [params],
                    lambda item: loop.call_soon_threadsafe(news.put_nowait, item),
                )
            output = pending[0].output
            while not output.finished:
                item = await news.get()
                with held_back():
                    self._apply(item)
                    while not news.empty():
                        self._apply(news.get_nowait())
                yield output
        finally:
            with held_back():
                self._cancel(pending)

    def _run(self, prompts: list[Any], tokens: Callable[[Any], tuple[str | None, np.ndarray]],
             params: list[SamplingParams], progress: bool | None) -> list[RequestOutput]:  # fmt: skip
        news: queue.SimpleQueue = queue.SimpleQueue()
        with held_back(lambda: news.put(None)) as interrupts:
            ready = []
            for prompt in prompts:
                ready.append(tokens(prompt))
                interrupts.look()
            pending = self._submit(ready, params, news.put)
            try:
                for _ in _with_bar(self._until_done(pending, news, interrupts), len(pending), progress):
                    pass
            finally:
                self._cancel(pending)  # what is left after an error or Ctrl-C
        return [one.output for one in pending]

    def _until_done(self, pending: list[_Pending], news: queue.SimpleQueue,
                    interrupts: Interrupts) -> Iterator[None]:  # fmt: skip
        """Apply news until all requests are finished; yields once a finished request."""
        left = len(pending)
        while left:
            item = news.get()
            interrupts.look()
            if item is None:  # it only woke us
                continue
            was_finished = item[0].output.finished
            self._apply(item)
            if item[0].output.finished and not was_finished:
                left -= 1
                yield

    def _submit(self, prompts: list[tuple[str | None, np.ndarray]], params: list[SamplingParams],
                tell: Callable[[tuple], object]) -> list[_Pending]:  # fmt: skip
        if os.getpid() != self._process:
            raise GenerationError(
                f"this LLM's engine runs in process {self._process}, which was forked: make another LLM here"
            )
        now = time.monotonic()
        pending, pairs = [], []
        for (text, ids), one in zip(prompts, params, strict=True):
            seed = one.base_seed()
            output = RequestOutput(
                str(next(_numbers)), text, ids.tolist(), [CompletionOutput(k) for k in range(one.n)],
                False, RequestMetrics(now),
            )  # fmt: skip
            entry = _Pending(output, one, self.tokenizer, tell)
            pending.append(entry)
            for index in range(one.n):
                request = one.request(ids, index=index, seed=seed, max_model_len=self.max_model_len)
                pairs.append((request, entry.sink(index)))
        try:
            submissions = iter(self._link.submit(pairs))
        except EngineGone as error:
            raise GenerationError(f"no engine: {error}") from None
        for entry in pending:
            entry.submissions = list(itertools.islice(submissions, entry.params.n))
        return pending

    def _apply(self, item: tuple) -> None:
        pending, *news = item
        if pending.failure is not None:
            raise GenerationError(str(pending.failure)) from pending.failure
        pending.apply(self._link, *news)

    def _cancel(self, pending: list[_Pending]) -> None:
        for entry in pending:
            for completion, submission in zip(entry.output.outputs, entry.submissions, strict=False):
                if not completion.finished():
                    completion.finish_reason = "abort"
                    self._link.cancel(submission)

    def _tokens(self, prompt: Prompt) -> tuple[str | None, np.ndarray]:
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, add_special=True, parse_special=True)
        else:
            ids = np.asarray(prompt, np.int32)
        if not len(ids):
            raise ParameterError(
                "prompt", "the prompt is empty: an answer needs at least one token before it"
            )
        if ids.min() < 0 or ids.max() >= self._link.vocab_size:
            raise ParameterError("prompt", f"token ids must lie in 0 … {self._link.vocab_size - 1}")
        return (prompt if isinstance(prompt, str) else None), ids

    # --- the end ---

    def close(self) -> None:
        """Stop the engine and give everything back. Closing twice is harmless."""
        self._finalizer()
        atexit.unregister(self._finalizer)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _end(local: Any, link: EngineLink, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child ends: engine and ring are its parent's
    with held_back():
        link.stop(5.0)
        local.stop(5.0, drain=False)


def _is_one(prompts: Any) -> bool:
    """Whether this is one prompt: a text, or a row of ids."""
    if isinstance(prompts, str):
        return True
    if isinstance(prompts, np.ndarray):
        return prompts.ndim == 1
    if not isinstance(prompts, Sequence):
        raise ParameterError(
            "prompts", f"must be a text, token ids, or a sequence of either; got {prompts!r}"
        )
    return len(prompts) > 0 and isinstance(prompts[0], int | np.integer)


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
        raise ParameterError(
            "sampling_params", f"must be SamplingParams, or one for each prompt; got {params!r}"
        )
    if len(params) != count:
        raise ParameterError("sampling_params", f"{len(params)} sampling parameters for {count} prompts")
    return list(params)


def _with_bar(steps: Iterator[None], total: int, shown: bool | None) -> Iterator[None]:
    """`steps`, counted by a progress bar."""
    if shown is None:
        shown = total > 1 and sys.stderr.isatty()
    columns = TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, disable=not shown, transient=True) as bar:
        task = bar.add_task("", total=total)
        for step in steps:
            bar.advance(task)
            yield step
