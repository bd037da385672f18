"""What the front end answers: the handlers of the API."""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import Any

import numpy as np

from blink_numba import __version__
from blink_numba.errors import ParameterError
from blink_numba.frontend import encode
from blink_numba.frontend.calls import Call
from blink_numba.frontend.errors import ApiError, invalid
from blink_numba.frontend.exchange import ClientGone, Exchange
from blink_numba.frontend.link import EngineLink
from blink_numba.frontend.metrics import Exposition, FrontEndCollector, Metrics
from blink_numba.frontend.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Sampled,
    TokenizeRequest,
)
from blink_numba.frontend.settings import FrontEndSettings
from blink_numba.sampling import SamplingParams
from tokenizer import Tokenizer

LONG_TEXT = 8192  # characters from which on a text is tokenized off the event loop
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for text completions


class Service:
    """Handlers, and what they share.

    Parameters
    ----------
    settings : FrontEndSettings
    tokenizer : Tokenizer
    link : EngineLink
    eos_ids : frozenset of int
        Ids that end an answer, as the engine has them.
    """

    def __init__(self, settings: FrontEndSettings, tokenizer: Tokenizer, link: EngineLink,
                 eos_ids: frozenset[int]) -> None:  # fmt: skip
        self.settings, self.tokenizer, self.link = settings, tokenizer, link
        self.metrics = Metrics()
        self.started = int(time.time())
        self._eos_ids = eos_ids
        self._longest_token = max(map(len, tokenizer.vocabulary.tokens), default=1)
        collector = FrontEndCollector(self.metrics, settings.served_names[0], self._gauges, self._counters)
        self._exposition = Exposition(collector)

    # --- generation ---

    async def chat(self, exchange: Exchange) -> None:
        """POST /v1/chat/completions"""
        body = await exchange.parse(ChatRequest)
        self._check_model(body.model)
        if body.max_tokens is not None and body.max_completion_tokens is not None:
            raise invalid("max_tokens", "give max_tokens or max_completion_tokens, not both")
        limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        params = self._params(body, limit, (body.top_logprobs or 0) if body.logprobs else None)
        turns = [message.as_turn() for message in body.messages]
        text = self.tokenizer.apply_chat_template(
            turns, add_generation_prompt=body.add_generation_prompt is not False, tokenize=False
        )
        prompt = await self._encode("messages", str(text), add_special=False)
        await self._answer(exchange, body, [prompt], params, chat=True, echoes=None,
                           names={"prompt": "messages", "max_tokens": _limit_name(body)})  # fmt: skip

    async def completions(self, exchange: Exchange) -> None:
        """POST /v1/completions"""
        body = await exchange.parse(CompletionRequest)
        self._check_model(body.model)
        prompts = await self._prompts(body.prompt)
        room = self.max_model_len - max(map(len, prompts))
        limit = body.max_tokens or min(COMPLETION_MAX_TOKENS, max(room, 1))
        params = self._params(body, limit, body.logprobs)
        echoes = [self.tokenizer.decode(prompt.tolist()) for prompt in prompts] if body.echo else None
        await self._answer(exchange, body, prompts, params, chat=False, echoes=echoes, names={})

    async def _answer(
        self,
        exchange: Exchange,
        body: Sampled,
        prompts: list[np.ndarray],
        params: SamplingParams,
        *,
        chat: bool,
        echoes: list[str] | None,
        names: dict[str, str],
    ) -> None:
        if len(prompts) * params.n > self.settings.max_choices:
            raise invalid(
                "n", f"{len(prompts)} prompts × n={params.n} exceed {self.settings.max_choices} answers"
            )
        call = Call(self.link, self.metrics, exchange.arrived)
        try:
            call.submit(prompts, params, self.tokenizer, self._eos_ids, self.max_model_len, chat=chat)
        except ParameterError as error:
            code = "context_length_exceeded" if error.param in ("prompt", "max_tokens") else None
            raise invalid(names.get(error.param, error.param), str(error), code) from None
        gone = asyncio.get_running_loop().create_future()
        exchange.watch(lambda: _leave(call, gone))
        head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + exchange.request_id,
            "created": int(time.time()),
            "model": body.model or self.settings.served_names[0],
        }
        if echoes is not None:
            for choice in call.choices:
                choice.text = echoes[choice.index // params.n]
        try:
            if body.stream:
                await self._stream(exchange, call, chat, head, body)
            else:
                await self._whole(exchange, call, chat, head)
        except asyncio.CancelledError:
            call.abandon()
            raise
        except ApiError:
            call.cancel()
            if gone.done():
                raise ClientGone from None
            raise
        finally:
            exchange.notes |= {
                "prompt_tokens": call.prompt_tokens,
                "completion_tokens": call.completion_tokens,
            }

    async def _whole(self, exchange: Exchange, call: Call, chat: bool, head: dict) -> None:
        await call.complete()
        exchange.unwatch()
        answers = [
            {
                "index": choice.index,
                "text": choice.take(),
                "logprobs": choice.take_logprobs(),
                "finish_reason": choice.answer.finish,
                "stop_reason": choice.answer.stop_reason,
            }
            for choice in call.choices
        ]
        counts = encode.usage(call.prompt_tokens, call.completion_tokens)
        await exchange.respond(encode.whole(chat, head, answers, counts))

    async def _stream(self, exchange: Exchange, call: Call, chat: bool, head: dict, body: Sampled) -> None:
        options = body.stream_options
        with_usage = options is not None and (options.include_usage or options.continuous_usage_stats)
        continuous = options is not None and options.continuous_usage_stats
        encoders = [encode.ChunkEncoder(chat, head, choice.index, with_usage) for choice in call.choices]
        while call.unfinished or not exchange.status:
            ready = await call.news()
            chunks = []
            for choice in ready:
                text, encoder, logprobs = choice.take(), encoders[choice.index], choice.take_logprobs()
                counts = encode.usage(choice.prompt_tokens, choice.answer.tokens) if continuous else None
                finish = choice.answer.finish
                if finish is not None:
                    stop_reason = choice.answer.stop_reason
                    chunks.append(encoder.last(text, finish, stop_reason, counts, logprobs))
                elif counts is not None or logprobs is not None:
                    chunks.append(encoder.more(text, logprobs, counts))
                elif text:
                    chunks.append(encoder.text(text))
            if not exchange.status:
                await exchange.start_stream()
            if chunks and call.unfinished:
                await exchange.write("".join(chunks).encode())
        if options is not None and options.include_usage:
            chunks.append(
                encode.usage_chunk(chat, head, encode.usage(call.prompt_tokens, call.completion_tokens))
            )
        exchange.unwatch()
        await exchange.write("".join(chunks).encode() + encode.DONE, last=True)

    def _params(self, body: Sampled, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        return sampling_params(body, max_tokens, self.settings.request_timeout_s, logprobs)

    # --- prompts ---

    async def _prompts(self, prompt: str | list) -> list[np.ndarray]:
        if isinstance(prompt, str):
            return [await self._encode("prompt", prompt, add_special=True)]
        if not prompt:
            raise invalid("prompt", "prompt is empty")
        if isinstance(prompt[0], int):
            return [self._token_ids("prompt", prompt)]
        if len(prompt) > self.settings.max_choices:
            raise invalid("prompt", f"{len(prompt)} prompts; at most {self.settings.max_choices} are taken")
        return [
            await self._encode(f"prompt[{i}]", item, add_special=True)
            if isinstance(item, str)
            else self._token_ids(f"prompt[{i}]", item)
            for i, item in enumerate(prompt)
        ]

    def _token_ids(self, param: str, ids: list[int]) -> np.ndarray:
        if not ids:
            raise invalid(param, f"{param} is empty: an answer needs at least one token before it")
        size = self.link.vocab_size or self.tokenizer.vocab_size
        for token in ids:
            if not 0 <= token < size:
                raise invalid(param, f"the token id {token} is not in 0 … {size - 1}")
        return np.array(ids, np.int32)

    async def _encode(self, param: str, text: str, *, add_special: bool) -> np.ndarray:
        if len(text) > self.max_model_len * self._longest_token:
            raise invalid(
                param,
                f"{param} has {len(text)} characters, more than this model's context of "
                f"{self.max_model_len} tokens can hold",
                "context_length_exceeded",
            )
        began = time.perf_counter()
        if len(text) > LONG_TEXT:
            ids = await asyncio.to_thread(
                self.tokenizer.encode, text, add_special=add_special, parse_special=True
            )
        else:
            ids = self.tokenizer.encode(text, add_special=add_special, parse_special=True)
        self.metrics.tokenize.observe(time.perf_counter() - began)
        if not len(ids):
            raise invalid(param, f"{param} is empty: an answer needs at least one token before it")
        return ids

    @property
    def max_model_len(self) -> int:
        """Context of the engine, in tokens.

        Raises
        ------
        ApiError
            503 before the first engine was seen.
        """
        if not self.link.max_model_len:
            raise ApiError(
                503, f"no engine: {self.link.health.reason}", code="engine_unavailable", retry_after_s=2
            )
        return self.link.max_model_len

    # --- the other endpoints ---

    async def tokenize(self, exchange: Exchange) -> None:
        """POST /tokenize"""
        body = await exchange.parse(TokenizeRequest)
        self._check_model(body.model)
        text, special = body.prompt, body.add_special_tokens is not False
        if body.messages is not None:
            text = self.tokenizer.apply_chat_template(
                [message.as_turn() for message in body.messages],
                add_generation_prompt=body.add_generation_prompt is not False, tokenize=False,
            )  # fmt: skip
            special = body.add_special_tokens is True
        assert isinstance(text, str)
        ids = await asyncio.to_thread(self.tokenizer.encode, text, add_special=special, parse_special=True)
        answer: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": self.max_model_len,
            "tokens": ids.tolist(),
        }
        if body.return_token_strs:
            answer["token_strs"] = [
                self.tokenizer.token_bytes(i).decode(errors="replace") for i in ids.tolist()
            ]
        await exchange.respond_json(answer)

    async def detokenize(self, exchange: Exchange) -> None:
        """POST /detokenize"""
        body = await exchange.parse(DetokenizeRequest)
        self._check_model(body.model)
        for i, token in enumerate(body.tokens):
            if not 0 <= token < self.tokenizer.vocab_size:
                raise invalid(f"tokens[{i}]", f"the vocabulary has no id {token}")
        await exchange.respond_json({"prompt": self.tokenizer.decode(body.tokens, skip_special=False)})

    async def models(self, exchange: Exchange) -> None:
        """GET /v1/models"""
        await exchange.respond_json(
            {"object": "list", "data": [self._card(n) for n in self.settings.served_names]}
        )

    async def model(self, exchange: Exchange) -> None:
        """GET /v1/models/{model}"""
        name = exchange.scope["path_params"]["model"]
        self._check_model(name)
        await exchange.respond_json(self._card(name))

    async def health(self, exchange: Exchange) -> None:
        """GET /health"""
        health = self.link.health
        if health.ok:
            await exchange.respond_json({"status": "ok"})
        else:
            await exchange.respond_json({"status": "unavailable", "reason": health.reason}, status=503)

    async def version(self, exchange: Exchange) -> None:
        """GET /version"""
        await exchange.respond_json({"version": __version__})

    async def show_metrics(self, exchange: Exchange) -> None:
        """GET /metrics"""
        await exchange.respond(self._exposition.text(), content_type=self._exposition.content_type)

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name, "object": "model", "created": self.started, "owned_by": "blink-numba",
            "root": self.settings.model, "parent": None, "max_model_len": self.link.max_model_len or None,
        }  # fmt: skip

    def _check_model(self, name: str | None) -> None:
        if name is not None and name not in self.settings.served_names:
            served = ", ".join(self.settings.served_names)
            raise ApiError(404, f"the model {name!r} is not served here; there is {served}", param="model",
                           code="model_not_found")  # fmt: skip

    # --- numbers for /metrics ---

    def _gauges(self) -> list[tuple[str, str, float]]:
        link, status = self.link, self.link.health.status
        blocks = self.settings.kv_blocks or link.blocks
        return [
            ("vllm:num_requests_running", "Requests in the batch", status.seats_used if status else 0),
            ("vllm:num_requests_waiting", "Requests that wait for a seat or a slot",
             link.waiting + (status.waiting if status else 0)),
            ("vllm:kv_cache_usage_perc", "Part of the KV blocks in use, 0 … 1",
             1.0 - status.blocks_free / blocks if status and blocks else 0.0),
            ("blink_numba:healthy", "1 while the scheduler's heartbeat moves", int(link.health.ok)),
            ("blink_numba:ring_slots_used", "Slots of this front end in use", link.live),
            ("blink_numba:ring_waiting", "Requests that wait for a free slot", link.waiting),
        ]  # fmt: skip

    def _counters(self) -> list[tuple[str, str, float]]:
        status = self.link.health.status
        if status is None:
            return []
        return [
            ("vllm:num_preemptions", "Requests preempted for want of KV blocks", status.preemptions),
            ("blink_numba:scheduler_steps", "Steps of the engine", status.steps),
            ("blink_numba:graph_launches", "Graph launches", status.launches),
            ("blink_numba:launch_windows", "Launch windows closed by a tail launch", status.windows),
            ("blink_numba:launch_retries", "Launches that were refused and tried again", status.retries),
            ("blink_numba:prefill_steps", "Prefill steps", status.prefills),
            ("blink_numba:decode_steps", "Decode steps", status.decodes),
            ("blink_numba:ring_claims", "Slots claimed by the scheduler", status.claims),
            ("blink_numba:ring_finished", "Slots completed by the scheduler", status.finished),
        ]


def sampling_params(
    body: Sampled, max_tokens: int | None, deadline_s: float | None = None, logprobs: int | None = None
) -> SamplingParams:
    """A request's sampling parameters; OpenAI's defaults where it gives none."""
    return SamplingParams(
        n=body.n or 1,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        seed=body.seed,
        stop=body.stop,
        stop_token_ids=body.stop_token_ids,
        ignore_eos=bool(body.ignore_eos),
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        logprobs=logprobs,
        priority=body.priority or 0,
        tenant=zlib.crc32(body.user.encode()) >> 1 if body.user else 0,
        deadline_s=deadline_s,
    )


def _limit_name(body: ChatRequest) -> str:
    return "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"


def _leave(call: Call, gone: asyncio.Future) -> None:
    """The client closed its connection."""
    if not gone.done():
        gone.set_result(None)
    call.abandon()
    call.fail(ApiError(499, "the client closed the connection"))
