"""One HTTP request and its response, straight on ASGI.

Handlers get an `Exchange`; `Gate` makes it, checks the key and the load, turns errors into
OpenAI's shape, counts and writes the access log.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Router

from blink_numba.errors import ParameterError
from blink_numba.frontend.encode import error_event
from blink_numba.frontend.errors import LONGEST_SHOWN, ApiError, from_validation, invalid
from blink_numba.frontend.metrics import Metrics
from blink_numba.frontend.schema import repeated_key
from blink_numba.frontend.settings import FrontEndSettings
from tokenizer import TokenizerError

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Handler = Callable[["Exchange"], Awaitable[None]]

Model = TypeVar("Model", bound=BaseModel)

log = logging.getLogger("blink_numba.access")
_PLAIN_ID = re.compile(r"[\x21-\x7e]{1,128}")
_OPEN_PATHS = frozenset({"/health", "/ping", "/metrics", "/version", "/openapi.json"})
ADMIN_PATH = "/admin/policy"  # its endpoint asks for a key of its own


class ClientGone(Exception):
    """The client closed the connection."""


class Exchange:
    """A request being answered.

    Attributes
    ----------
    request_id : str
        The client's ``X-Request-Id``, or a new one.
    arrived : float
        In seconds of the monotonic clock.
    status : int
        Of the response; 0 before it began, 499 if the client left before it did.
    notes : dict
        Further fields of the access log.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: FrontEndSettings) -> None:
        self.arrived = time.monotonic()
        self.scope, self.settings = scope, settings
        self._receive, self._send = receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"").decode("latin-1")
        self.request_id = given if _PLAIN_ID.fullmatch(given) else secrets.token_hex(12)
        self.status = 0
        self.notes: dict[str, Any] = {}
        self._watch: asyncio.Task[None] | None = None

    @property
    def path(self) -> str:
        return self.scope["path"]

    def authorize(self, keys: Sequence[bytes], name: str) -> None:
        """Refuse a client that does not send one of `keys`, compared in constant time.

        Raises
        ------
        ApiError
            401, which calls the key by its `name`.
        """
        given = self.headers.get(b"authorization", b"")
        token = given[7:] if given[:7].lower() == b"bearer " else b""
        if not sum(hmac.compare_digest(token, key) for key in keys):
            raise ApiError(401, f"the {name} is missing or wrong: send 'Authorization: Bearer KEY'",
                           code="invalid_api_key")  # fmt: skip

    async def body(self) -> bytes:
        """The whole body.

        Raises
        ------
        ApiError
            413 for a body over the limit.
        ClientGone
        """
        limit = self.settings.max_body_bytes
        too_large = ApiError(413, f"the body exceeds the limit of {limit} bytes")
        length = self.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            raise too_large
        pieces, size = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise too_large
            pieces.append(piece)
            if not message.get("more_body", False):
                return b"".join(pieces)

    async def parse(self, model: type[Model]) -> Model:
        """The body as `model`; raises `ApiError` naming the parameter at fault."""
        kind = self.headers.get(b"content-type", b"application/json").split(b";")[0].strip().lower()
        if kind not in (b"application/json", b""):
            raise ApiError(415, f"the content type {kind.decode('latin-1')!r} is not application/json")
        packed = self.headers.get(b"content-encoding", b"identity").strip().lower()
        if packed not in (b"identity", b""):
            raise ApiError(
                415, f"the content encoding {packed.decode('latin-1')!r} is not supported: send it plain"
            )
        body = await self.body()
        try:
            parsed = model.model_validate_json(body)
        except ValidationError as error:
            raise from_validation(error) from None
        twice = repeated_key(body)
        if twice is not None:
            raise invalid(twice, f"the key {twice!r} is given twice in one object: leave one of them out")
        return parsed

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` when the client closes the connection. After the body was read."""

        async def wait() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            gone()

        self._watch = asyncio.get_running_loop().create_task(wait())

    def unwatch(self) -> None:
        """The response is about to be complete: a close is no news any more."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def respond(self, body: bytes, *, status: int = 200, content_type: str = "application/json",
                      headers: dict[str, str] | None = None) -> None:  # fmt: skip
        """Send a whole response."""
        await self._start(status, content_type, {"content-length": str(len(body)), **(headers or {})})
        await self._send({"type": "http.response.body", "body": body})

    async def respond_json(self, value: object, status: int = 200) -> None:
        await self.respond(json.dumps(value, ensure_ascii=False).encode(), status=status)

    async def start_stream(self) -> None:
        """Begin a stream of server-sent events."""
        await self._start(200, "text/event-stream; charset=utf-8", {"cache-control": "no-cache"})

    async def write(self, chunk: bytes, *, last: bool = False) -> None:
        """Send a piece of a stream; waits while the client is behind."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": not last})

    async def fail(self, error: ApiError) -> None:
        """Answer with an error, or end a stream with one."""
        if self.status:
            await self.write(error_event(error.body()), last=True)
        else:
            await self.respond(error.body(), status=error.status, headers=error.headers)
        self.notes["error"] = error.message

    async def _start(self, status: int, content_type: str, headers: dict[str, str]) -> None:
        self.status = status
        fields = {"content-type": content_type, "x-request-id": self.request_id, **headers}
        raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in fields.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


class Endpoint:
    """A handler as Starlette's router takes it.

    Parameters
    ----------
    path : str
        Its route.
    handler : coroutine function
        Takes the `Exchange`.
    """

    def __init__(self, path: str, handler: Handler) -> None:
        self.path, self._handler = path, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope["exchange"])


class Gate:
    """The ASGI application around the router.

    Parameters
    ----------
    router : starlette.routing.Router
        Of `Endpoint`s.
    """

    def __init__(self, settings: FrontEndSettings, metrics: Metrics, router: Router) -> None:
        self._settings, self._metrics, self._router = settings, metrics, router
        self._keys = [key.encode() for key in settings.api_keys]
        self._open_paths = _OPEN_PATHS if settings.admin_api_key is None else _OPEN_PATHS | {ADMIN_PATH}
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)  # type: ignore[arg-type]
            return
        exchange = Exchange(scope, receive, send, self._settings)
        scope["exchange"] = exchange
        scope["app"] = self  # makes the router raise what it would answer in plain text
        self.active += 1
        try:
            self._admit(exchange)
            await self._router(scope, receive, send)  # type: ignore[arg-type]
        except ClientGone:
            exchange.status = exchange.status or 499
        except Exception as error:
            await self._fail(exchange, error)
        finally:
            exchange.unwatch()
            self.active -= 1
            endpoint = scope.get("endpoint")
            route = endpoint.path if isinstance(endpoint, Endpoint) else "other"
            self._metrics.responses[route, exchange.status] += 1
            if self._settings.access_log:
                self._write_log(exchange)

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        if isinstance(error, ApiError):
            refusal = error
        elif isinstance(error, HTTPException):  # the router's
            detail = f"{exchange.scope['method']} {exchange.path[:LONGEST_SHOWN]}: {error.detail}"
            headers = dict(error.headers or {})
            refusal = ApiError(error.status_code, detail, code="unknown_url", headers=headers)
        elif isinstance(error, ParameterError):
            refusal = ApiError(400, str(error), param=error.param)
        elif isinstance(error, TokenizerError):
            refusal = ApiError(400, str(error))
        else:
            logging.getLogger("blink_numba").error("request %s failed", exchange.request_id, exc_info=error)
            refusal = ApiError(500, "internal error; the server's log has it under this request id")
        await exchange.fail(refusal)

    def _admit(self, exchange: Exchange) -> None:
        if exchange.path in self._open_paths:
            return
        if self._keys:
            exchange.authorize(self._keys, "API key")
        if self.active > self._settings.max_requests:
            raise ApiError(503, f"{self._settings.max_requests} requests are in service already",
                           code="too_many_requests", retry_after_s=1)  # fmt: skip

    def _write_log(self, exchange: Exchange) -> None:
        client = exchange.scope.get("client")
        log.info(
            json.dumps({
                "request_id": exchange.request_id,
                "client": client[0] if client else None,
                "method": exchange.scope["method"],
                "path": exchange.path[:LONGEST_SHOWN],
                "status": exchange.status,
                "ms": round((time.monotonic() - exchange.arrived) * 1e3, 2),
                **exchange.notes,
            })
        )  # fmt: skip
