"""The front end put together, and the process that runs it."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from starlette.routing import Route, Router

from blink_numba.frontend.connector import Connector, ShmConnector
from blink_numba.frontend.exchange import ADMIN_PATH, Endpoint, Exchange, Gate, Handler
from blink_numba.frontend.guard import guarded
from blink_numba.frontend.link import EngineLink
from blink_numba.frontend.openapi import document
from blink_numba.frontend.service import Service
from blink_numba.frontend.settings import FrontEndSettings
from tokenizer import Tokenizer

log = logging.getLogger("blink_numba")


def build(settings: FrontEndSettings, tokenizer: Tokenizer, eos_ids: frozenset[int],
          connector: Connector | None = None) -> tuple[Gate, Service]:  # fmt: skip
    """The ASGI application and its service; the link starts and ends with its lifespan."""
    link = EngineLink(
        connector or ShmConnector(settings.ring, settings.front_end),
        queue_timeout_s=settings.queue_timeout_s,
        heartbeat_timeout_s=settings.heartbeat_timeout_s,
        engine_grace_s=settings.engine_grace_s,
        stall_timeout_s=settings.stall_timeout_s,
    )
    service = Service(settings, tokenizer, link, eos_ids)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        link.start(asyncio.get_running_loop().call_soon_threadsafe)
        await _first_engine(link, settings.first_engine_s)
        yield
        await asyncio.to_thread(link.stop, 5.0)

    async def openapi(exchange: Exchange) -> None:
        await exchange.respond_json(document(admin=settings.admin_api_key is not None))

    endpoints = [
        ("/v1/chat/completions", "POST", service.chat),
        ("/v1/completions", "POST", service.completions),
        ("/v1/models", "GET", service.models),
        ("/v1/models/{model:path}", "GET", service.model),
        ("/tokenize", "POST", service.tokenize),
        ("/detokenize", "POST", service.detokenize),
        ("/health", "GET", service.health),
        ("/metrics", "GET", service.show_metrics),
        ("/version", "GET", service.version),
        ("/openapi.json", "GET", openapi),
    ]
    routes = [_route(path, [method], handler) for path, method, handler in endpoints]
    if settings.admin_api_key is not None:
        from blink_numba.frontend.admin import Admin

        routes.append(_route(ADMIN_PATH, ["GET", "POST"], Admin(settings, link).policy))
    # no redirects of a trailing slash: their target would be made of the client's Host header
    router = Router(routes, redirect_slashes=False, lifespan=lifespan)
    return Gate(settings, service.metrics, router), service


def _route(path: str, methods: list[str], handler: Handler) -> Route:
    return Route(path, Endpoint(path, handler), methods=methods)


async def _first_engine(link: EngineLink, deadline_s: float) -> None:
    """Give the engine a moment: the first health check after the start should tell the truth."""
    give_up = time.monotonic() + deadline_s
    while not link.health.ok:
        if time.monotonic() >= give_up:
            log.warning("no engine yet: %s; requests get 503 until there is one", link.health.reason)
            return
        await asyncio.sleep(0.02)


def uvicorn_config(app: Gate, settings: FrontEndSettings) -> uvicorn.Config:
    """uvicorn with this server's limits."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=settings.host,
        port=settings.port,
        http=guarded(settings),
        ws="none",
        loop="uvloop",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level=settings.log_level,
        server_header=False,
        timeout_keep_alive=int(settings.keep_alive_s),
        timeout_graceful_shutdown=int(settings.drain_timeout_s),
    )


class _Server(uvicorn.Server):
    """Tells when it listens."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[int], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready(self.servers[0].sockets[0].getsockname()[1])


def run(
    settings: FrontEndSettings,
    tokenizer: Tokenizer,
    eos_ids: frozenset[int],
    connector: Connector | None = None,
    on_ready: Callable[[int], None] = lambda port: None,
) -> int:
    """Serve until SIGINT or SIGTERM; finishes what is in service first.

    Parameters
    ----------
    on_ready : callable
        Called with the port once requests are answered.

    Returns
    -------
    int
        Exit status for the process.
    """
    app, _ = build(settings, tokenizer, eos_ids, connector)
    this = _Server(uvicorn_config(app, settings), on_ready)
    sockets = None if settings.listen_fd is None else [socket.socket(fileno=settings.listen_fd)]
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again once it has drained
        this.run(sockets=sockets)
    return 0 if this.started else 1
