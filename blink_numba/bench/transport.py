"""What a front end's way to the ring costs, for every transport there is.

Latencies of single batches; posts, operations and bytes of serving 64 streams by an engine
that gives each a token a millisecond; tokens a second of one that answers at once. `verbs` is
measured to this host's own device (loopback), `dma` as copies alone, since no scheduler runs
beside them here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from blink_numba.bench.instant import InstantEngine
from blink_numba.bench.report import Row, median_row
from rdma.operations import READ, WRITE, Operations
from rdma.port import FrontEndPort
from rdma.shm import ShmTransport
from rdma.staging import Share
from rdma.submit import Request
from rdma.transport import RingMap, Transport, TransportError
from ring.layout import RingGeometry

STREAMS = 64
PROMPT_TOKENS = 128
STEP_NS = 1_000_000
_POLL_TARGET_US = 50.0
_CONTROL_WORDS = 8192  # 4096 control records, the paper's 64 KiB


def run(transport: str = "all", repeats: int = 7, tokens: int = 256) -> list[Row]:
    """Measure each transport.

    Parameters
    ----------
    transport : str
        ``shm``, ``verbs``, ``dma``, or ``all`` that are there.
    repeats : int
        Runs of which the median is told.
    tokens : int
        Length of each of the 64 answers.
    """
    measures = {"shm": _shm, "verbs": _verbs, "dma": _dma}
    if transport != "all":
        if transport not in measures:
            raise ValueError(f"transport={transport!r} must be all or one of {', '.join(measures)}")
        return measures[transport](repeats, tokens)
    rows = []
    for measure in measures.values():
        try:
            rows += measure(repeats, tokens)
        except TransportError:
            continue  # not on this machine
    return rows


def _shm(repeats: int, tokens: int) -> list[Row]:
    def connect(engine: InstantEngine) -> ShmTransport:
        return ShmTransport.attach(engine.ring_name)

    with _engine(STEP_NS) as engine:
        with connect(engine) as transport:
            rows = _latencies("shm", transport, repeats)
        rows += _serving("shm", connect(engine), repeats, tokens)
    with _engine(0) as engine:
        return [*rows, _flood("shm", connect(engine), repeats, tokens)]


def _verbs(repeats: int, tokens: int) -> list[Row]:
    from rdma.verbs import RingHost, VerbsTransport, open_device

    open_device().close()
    key = os.urandom(32)

    def connect(host: RingHost) -> VerbsTransport:
        _wait(lambda: not host.sessions())  # the one before may still be on its way out
        return VerbsTransport("127.0.0.1", host.port, key=key)

    with _engine(STEP_NS) as engine, RingHost(engine.memory, key, host="127.0.0.1") as host:
        with connect(host) as transport:
            rows = _latencies("verbs", transport, repeats)
        rows += _serving("verbs", connect(host), repeats, tokens)
    with _engine(0) as engine, RingHost(engine.memory, key, host="127.0.0.1") as host:
        return [*rows, _flood("verbs", connect(host), repeats, tokens)]


def _dma(repeats: int, tokens: int) -> list[Row]:
    from blink_numba.runtime.probe import cuda_usable
    from rdma.dma import DmaTransport, cuda_driver

    if (reason := cuda_usable()) is not None:
        raise TransportError(f"no GPU for the dma transport: {reason}")
    driver = cuda_driver()
    for call in (lambda: driver.cuInit(0), lambda: driver.cuDevicePrimaryCtxRetain(0)):
        status, *values = call()
        if status != driver.CUresult.CUDA_SUCCESS:
            raise TransportError(f"CUDA does not start: {status}")
    driver.cuCtxSetCurrent(values[0])
    ring = RingMap(RingGeometry(), 0, 4096, 1 << 17)
    status, address = driver.cuMemAlloc(8 * ring.words)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise TransportError(f"no GPU memory for a ring: {status}")
    try:
        return _latencies("dma", DmaTransport(int(address), ring, context=values[0]), repeats)
    finally:
        driver.cuMemFree(address)


@contextmanager
def _engine(step_ns: int) -> Iterator[InstantEngine]:
    with InstantEngine(f"bench-transport-{os.getpid()}", slots=4096, step_ns=step_ns) as engine:
        yield engine


def _latencies(name: str, transport: Transport, repeats: int) -> list[Row]:
    """Medians of one batch at a time, posted and completed."""
    transport.allocate(_CONTROL_WORDS)
    share = Share(transport.ring, 0)
    cases = {
        "read_8B_us": [(READ, share.ctl, 0, 1)],
        "read_64KiB_us": [(READ, share.ctl, 0, _CONTROL_WORDS)],
        "write_8B_us": [(WRITE, share.arena, 0, 1)],
        "write_4KiB_us": [(WRITE, share.arena, 0, 512)],
        "chain_of_16_us": [(WRITE, share.arena + 64 * k, 64 * k, 8) for k in range(16)],
    }
    rows = []
    for case, operations in cases.items():
        batch = Operations(len(operations))
        for operation in operations:
            batch.add(*operation)

        def once(batch: Operations = batch) -> None:
            transport.post(batch)
            transport.complete()

        rows.append(median_row(f"{name}/{case}", _timed(once, repeats, 50), "us", better="lower"))
    return rows


def _timed(call: Callable[[], object], repeats: int, calls: int) -> list[float]:
    """Median time of a call in µs, for each repeat."""
    call()
    medians = []
    for _ in range(repeats):
        times = []
        for _ in range(calls):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        medians.append(1e6 * float(np.median(times)))
    return medians


def _serving(name: str, transport: Transport, repeats: int, tokens: int) -> list[Row]:
    """A port with 64 streams: times of poll and submission, and what they cost on the wire."""
    prompt = np.arange(1, PROMPT_TOKENS + 1, dtype=np.int32)
    with FrontEndPort(transport) as port:
        port.warm_up()
        _stream(port, prompt, 8)
        runs = [_stream(port, prompt, tokens) for _ in range(repeats)]
        first = [_first_token_us(port, prompt) for _ in range(max(repeats, 20))]
        idle = _timed(port.poll, repeats, 50)

    def row(case: str, field: str, unit: str, target: float | None = None) -> Row:
        values = [found[field] for found in runs]
        return median_row(f"{name}/{case}", values, unit, target, "lower", streams=STREAMS, tokens=tokens)

    target = _POLL_TARGET_US if name == "shm" else None
    return [
        row("submit_us", "submit_us", "us"),
        median_row(f"{name}/first_token_us", first, "us", better="lower", step_us=STEP_NS / 1e3),
        row("poll_64_us", "poll_us", "us", target),
        median_row(f"{name}/poll_idle_us", idle, "us", better="lower"),
        row("posts_per_burst", "burst_posts", "count", 1.0),
        row("posts_per_poll", "posts_per_poll", "count", 2.0),
        row("posts_per_token", "posts_per_token", "count"),
        row("operations_per_token", "operations_per_token", "count"),
        row("operations_per_request", "operations_per_request", "count"),
        row("bytes_per_token", "bytes_per_token", "B"),
        row("bytes_per_request", "bytes_per_request", "B"),
    ]


def _flood(name: str, transport: Transport, repeats: int, tokens: int) -> Row:
    """Tokens a second when the engine is never what is waited for."""
    prompt = np.arange(1, PROMPT_TOKENS + 1, dtype=np.int32)
    with FrontEndPort(transport) as port:
        port.warm_up()
        _stream(port, prompt, 8)
        rates = [_stream(port, prompt, tokens)["tokens_s"] for _ in range(repeats)]
    return median_row(f"{name}/tokens_s", rates, "tok/s", streams=STREAMS, tokens=tokens)


def _stream(port: FrontEndPort, prompt: np.ndarray, tokens: int) -> dict[str, float]:
    """Serve 64 answers; costs by the port's own counters."""
    requests = [Request(prompt, max_tokens=tokens, ignore_eos=True) for _ in range(STREAMS)]
    before = port.counts()
    began = time.perf_counter()
    port.submit_many(requests)
    submitted = time.perf_counter()
    after_burst = port.counts()
    counters, most_posts, got, times = port.transport.counters, 0, 0, []
    while port.live():
        posts, poll_began = counters.posts, time.perf_counter()
        events = port.poll()
        poll_ended = time.perf_counter()
        if port.live() == STREAMS:  # the poll that ends the last answer posts the releases, too
            most_posts = max(most_posts, counters.posts - posts)
        if len(events) == STREAMS:
            times.append(poll_ended - poll_began)
        got += sum(event.tokens.shape[0] for event in events)
        time.sleep(port.idle_interval())
    ended = time.perf_counter()
    after = port.counts()
    used = {name: after[name] - after_burst[name] for name in after}
    whole = {name: after[name] - before[name] for name in after}
    return {
        "submit_us": 1e6 * (submitted - began) / STREAMS,
        "poll_us": 1e6 * float(np.median(times or [ended - submitted])),
        "tokens_s": got / (ended - submitted),
        "burst_posts": after_burst["posts"] - before["posts"],
        "posts_per_poll": float(most_posts),
        "posts_per_token": used["posts"] / got,
        "operations_per_token": used["operations"] / got,
        "operations_per_request": whole["operations"] / STREAMS,
        "bytes_per_token": (used["bytes_read"] + used["bytes_written"]) / got,
        "bytes_per_request": (whole["bytes_read"] + whole["bytes_written"]) / STREAMS,
    }


def _first_token_us(port: FrontEndPort, prompt: np.ndarray) -> float:
    """From submission to the only token of an answer, in µs."""
    began = time.perf_counter()
    port.submit(Request(prompt, max_tokens=1))
    while port.live():
        port.poll()
    return 1e6 * (time.perf_counter() - began)


def _wait(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
    give_up = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= give_up:
            raise TransportError("the ring's host did not let go of a session")
        time.sleep(0.01)
