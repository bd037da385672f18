"""Bodies of requests. Strict: what is not listed, or not supported, is an error that names it.

Parameters of OpenAI's API that do nothing here may be sent with the value that means
"nothing" (``frequency_penalty: 0``), as several clients do; any other value is refused.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from blink_numba.errors import ParameterError
from ring.layout import MAX_LOGPROBS

MAX_MESSAGES = 4096


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Repeated(Exception):
    """A key that one object has twice."""


def repeated_key(body: bytes) -> str | None:
    """A key that stands twice in an object of a body, which is valid JSON; pydantic lets the last one win."""

    def look(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Repeated(key)
            seen.add(key)

    try:
        json.loads(body, object_pairs_hook=look)
    except _Repeated as found:
        return str(found)
    return None


def _neutral(*values: Any) -> AfterValidator:
    """Accept only values that ask for nothing."""

    def check(value: Any) -> Any:
        if value is not None and value not in values:
            allowed = " or ".join(repr(v) for v in values) or "null"
            raise ValueError(f"is not supported here; leave it out (only {allowed} is taken)")
        return value

    return AfterValidator(check)


class StreamOptions(Body):
    """What a stream carries besides text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Sampled(Body):
    """Parameters that chat and text completions share."""

    model: str | None = None
    n: int | None = Field(default=None, ge=1, le=128)
    max_tokens: int | None = Field(default=None, ge=1)
    min_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0.0, le=100.0)
    top_p: float | None = Field(default=None, ge=1e-6, le=1.0)
    top_k: int | None = Field(default=None, ge=-1, le=1 << 31)
    seed: int | None = Field(default=None, ge=-(1 << 63), le=(1 << 63) - 1)
    stop: str | list[str] | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0, le=(1 << 31) - 1)]] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = Field(default=None, ge=0, le=(1 << 31) - 1)
    user: str | None = Field(default=None, max_length=1024)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # accepted only where they ask for nothing
    frequency_penalty: Annotated[float | None, _neutral(0.0)] = None
    presence_penalty: Annotated[float | None, _neutral(0.0)] = None
    repetition_penalty: Annotated[float | None, _neutral(1.0)] = None
    min_p: Annotated[float | None, _neutral(0.0)] = None
    logit_bias: Annotated[dict[str, float] | None, _neutral({})] = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Sampled:
        if self.stream_options is not None and not self.stream:
            raise ParameterError("stream_options", "only allowed when stream is true")
        return self


class TextPart(Body):
    """A part of a message's content; text is the only kind."""

    type: Literal["text"]
    text: str


class Message(Body):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    # what clients send back of an answer when they go on with a conversation
    refusal: Annotated[str | None, _neutral()] = None
    annotations: Annotated[list[Any] | None, _neutral([])] = None
    audio: Annotated[dict[str, Any] | None, _neutral()] = None
    function_call: Annotated[dict[str, Any] | None, _neutral()] = None
    tool_calls: Annotated[list[Any] | None, _neutral([])] = None

    def as_turn(self) -> dict[str, str]:
        """The turn as chat templates expect it; ``developer`` is OpenAI's newer name of ``system``."""
        role = "system" if self.role == "developer" else self.role
        content = self.content if isinstance(self.content, str) else "".join(p.text for p in self.content)
        return {"role": role, "content": content}


class ChatRequest(Sampled):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    add_generation_prompt: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)

    response_format: Annotated[dict[str, str] | None, _neutral({"type": "text"})] = None
    tools: Annotated[list[Any] | None, _neutral([])] = None
    tool_choice: Annotated[str | dict[str, Any] | None, _neutral("none")] = None
    modalities: Annotated[list[str] | None, _neutral(["text"])] = None
    store: Annotated[bool | None, _neutral(False)] = None

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ParameterError("top_logprobs", "only allowed when logprobs is true")
        return self


class CompletionRequest(Sampled):
    """Body of ``POST /v1/completions``."""

    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    best_of: Annotated[int | None, _neutral(1)] = None
    suffix: Annotated[str | None, _neutral("")] = None

    @model_validator(mode="after")
    def _an_echo_has_no_logprobs(self) -> CompletionRequest:
        if self.echo and self.logprobs is not None:
            raise ParameterError(
                "echo", "is not supported with logprobs: prompts have no log probabilities here"
            )
        return self


class TokenizeRequest(Body):
    """Body of ``POST /tokenize``: a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ParameterError("prompt", "give either prompt or messages")
        return self


class DetokenizeRequest(Body):
    """Body of ``POST /detokenize``."""

    model: str | None = None
    tokens: list[int]
