"""What the front end costs: streams and time to first token before an engine that answers at once.

Three processes: the instant engine (`blink_numba.bench.instant`), the front end as `serve`
runs it, and this one with a client that does nothing but count. In the throughput part the
engine gives every stream one token a step, faster than is asked for; what arrives is what the
front end can do. ``chunks_s`` tells how many chunks carried them: a front end that falls
behind sends several tokens in one.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import psutil
import typer
import uvloop

from blink_numba.bench.report import Row, median_row
from blink_numba.frontend.settings import FrontEndSettings
from blink_numba.serving import FrontEndProcess, listen

TOKENS_S, TTFT_ADDED_MS = 15_000, 1.0
START_S = 300.0


@dataclass
class _Running:
    """The processes of a measurement."""

    port: int
    front_end: psutil.Process


@contextmanager
def _processes(model: str, step_us: float) -> Iterator[_Running]:
    """An instant engine and a front end before it."""
    ring = f"bench-frontend-{os.getpid()}"
    engine = subprocess.Popen(
        [sys.executable, "-m", "blink_numba.bench.instant", ring, str(step_us)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    front_end = None
    try:
        assert engine.stdout is not None
        if engine.stdout.readline() != b"ready\n":
            raise RuntimeError("the instant engine did not start")
        settings = FrontEndSettings(model, (model,), ring, access_log=False, log_level="warning")
        with listen("127.0.0.1", 0) as listening:
            front_end = FrontEndProcess(settings, listening)
            front_end.wait_ready(START_S)
            yield _Running(listening.getsockname()[1], psutil.Process(front_end.pid))
    finally:
        if front_end is not None:
            front_end.stop(10.0)
        engine.communicate()


class _Client(asyncio.Protocol):
    """One connection that sends a request and looks at nothing but first chunk, count and end."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._loop = asyncio.get_running_loop()
        self.chunks = 0
        self.began = self.first_s = 0.0
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.ask()

    def ask(self) -> None:
        """Send the request (again)."""
        self.done = self._loop.create_future()
        self.chunks, self.first_s, self._tail = 0, 0.0, b""
        self.began = time.perf_counter()
        self._transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.chunks += data.count(b"data: ")
        if self.chunks and not self.first_s:
            self.first_s = time.perf_counter() - self.began
        self._tail = (self._tail + data)[-16:]
        if self._tail.endswith(b"0\r\n\r\n") and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the server closed a stream"))


def _request(model: str, tokens: int) -> bytes:
    body = json.dumps({"model": model, "prompt": "What one says in rings comes back. ", "max_tokens": tokens,
                       "stream": True, "ignore_eos": True, "temperature": 0}).encode()  # fmt: skip
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body)
    )


async def _streams(running: _Running, model: str, streams: int, tokens: int) -> tuple[float, float, float]:
    """Tokens/s and chunks/s of `streams` at once, and the front end's share of a core."""
    loop = asyncio.get_running_loop()
    request = _request(model, tokens)
    before = running.front_end.cpu_times()
    began = time.perf_counter()
    clients = await asyncio.gather(
        *[loop.create_connection(lambda: _Client(request), "127.0.0.1", running.port) for _ in range(streams)]
    )
    await asyncio.wait_for(asyncio.gather(*[client.done for _, client in clients]), 600.0)
    took = time.perf_counter() - began
    after = running.front_end.cpu_times()
    chunks = sum(client.chunks - 1 for _, client in clients)  # [DONE] is no chunk
    for transport, _ in clients:
        transport.abort()
    busy = after.user + after.system - before.user - before.system
    return streams * tokens / took, chunks / took, busy / took


async def _first_chunks(running: _Running, model: str, requests: int) -> list[float]:
    """Milliseconds from request to first chunk, one request at a time on one connection."""
    loop = asyncio.get_running_loop()
    request = _request(model, 1)
    transport, client = await loop.create_connection(lambda: _Client(request), "127.0.0.1", running.port)
    times = []
    for number in range(requests + 20):
        if number:
            client.ask()
        await asyncio.wait_for(client.done, 60.0)
        if number >= 20:  # the first ones warm caches
            times.append(client.first_s * 1e3)
    transport.abort()
    return times


def run(
    streams: Annotated[int, typer.Option(min=1, help="Streams at once.")] = 256,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each.")] = 256,
    step_ms: Annotated[float, typer.Option(help="A step of the engine: one token a stream.")] = 8.0,
    requests: Annotated[int, typer.Option(min=10, help="Requests for the time to first token.")] = 400,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats; the median counts.")] = 3,
    model: Annotated[str, typer.Option(help="Whose tokenizer.")] = "tiny",
) -> list[Row]:
    """Streamed tokens a second and time added to the first token, before an engine that answers at once.

    Parameters
    ----------
    streams, tokens : int
    step_ms : float
        Offered are ``1000 * streams / step_ms`` tokens a second.
    """
    offered = 1e3 * streams / step_ms
    with uvloop_runner() as runner:
        with _processes(model, step_ms * 1e3) as running:
            runner.run(_streams(running, model, streams, 8))  # warms up
            through = [runner.run(_streams(running, model, streams, tokens)) for _ in range(repeats)]
        with _processes(model, 0.0) as running:
            firsts = [runner.run(_first_chunks(running, model, requests)) for _ in range(repeats)]
    added = [statistics.median(times) for times in firsts]
    p99 = statistics.median(statistics.quantiles(times, n=100)[98] for times in firsts)
    return [
        median_row(
            "tokens_s", [rate for rate, _, _ in through], "tok/s", TOKENS_S, streams=streams, offered=offered
        ),
        median_row("chunks_s", [rate for _, rate, _ in through], "chunks/s"),
        median_row("cores", [cores for _, _, cores in through], "cores", None, "lower"),
        median_row("ttft_added_ms", added, "ms", TTFT_ADDED_MS, "lower", p99=p99),
    ]


def uvloop_runner() -> asyncio.Runner:
    """Runs coroutines one after another on one event loop."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
