"""A client in a process of its own that knows nothing but the ring: what a network card would do.

``python -m blink_numba.bench.client [CORE]`` reads commands, one JSON object a line, and answers
each with one line: ``{"attach": ring}``, ``{"load": {…}}`` (fields of `Load`), ``{"detach": true}``.
It ends with its input.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from blink_numba.bench.flight import FlightTail, decode_steps
from rdma import FrontEndPort, Handle, Request, ShmTransport

ANSWER_S = 180.0


@dataclass(frozen=True)
class Load:
    """A closed loop: `concurrency` clients, each with its next request as soon as it is answered.

    Attributes
    ----------
    concurrency, prompt, tokens : int
        Requests at once; tokens of each prompt and of each answer (end marks are ignored).
    vocab_size : int
    warmup_s, seconds : float
        What begins or ends before `warmup_s` does not count; then `seconds` are measured.
    """

    concurrency: int = 16
    prompt: int = 128
    tokens: int = 128
    vocab_size: int = 256
    warmup_s: float = 1.0
    seconds: float = 5.0


class ClosedLoop:
    """Runs a load over a port. `run` returns what was measured.

    Parameters
    ----------
    port : FrontEndPort
    flight : int64[…]
        The ring's flight recorder.
    load : Load
    """

    def __init__(self, port: FrontEndPort, flight: np.ndarray, load: Load) -> None:
        self._port, self._flight, self._load = port, flight, load
        self._random = np.random.default_rng(1)
        self._submitted: dict[Handle, float] = {}
        self._first: dict[Handle, float] = {}
        self._ttft: list[float] = []
        self._tpot: list[float] = []
        self._tokens = 0
        self._since = 0.0

    def run(self) -> dict[str, Any]:
        """Warm up and measure; requests stay in service (`end_all`)."""
        load = self._load
        began = time.perf_counter()
        self._since, end = began + load.warmup_s, began + load.warmup_s + load.seconds
        tail: FlightTail | None = None
        self._submit(load.concurrency)
        while (now := time.perf_counter()) < end:
            events = self._port.poll()
            if tail is None and now >= self._since:
                tail = FlightTail(self._flight)
            if not events:
                if tail is not None:
                    tail.look()
                time.sleep(self._port.idle_interval())
                continue
            self._take(events, time.perf_counter())
        assert tail is not None
        return {
            "seconds": load.seconds, "tokens": self._tokens, "requests": len(self._ttft),
            "ttft_ms": self._ttft, "tpot_ms": self._tpot,
            "step_us": decode_steps(tail.entries()).tolist(), "lost_entries": tail.lost,
        }  # fmt: skip

    def end_all(self, deadline_s: float = 30.0) -> None:
        """Cancel what is in service and wait for its end."""
        give_up = time.monotonic() + deadline_s
        for handle in self._submitted:
            self._port.cancel(handle)
        while self._port.live():
            if time.monotonic() > give_up:
                raise RuntimeError(f"requests did not end within {deadline_s:g} s of their cancel")
            if not self._port.poll():
                time.sleep(self._port.idle_interval())

    def _submit(self, count: int) -> None:
        load = self._load
        requests = [
            Request(
                self._random.integers(0, load.vocab_size, load.prompt).astype(np.int32),
                max_tokens=load.tokens,
                ignore_eos=True,
            )
            for _ in range(count)
        ]
        now = time.perf_counter()
        for outcome in self._port.submit_many(requests):
            if not isinstance(outcome, Handle):
                raise outcome
            self._submitted[outcome] = now

    def _take(self, events: Iterable, now: float) -> None:
        ended = 0
        for event in events:
            counts = now >= self._since
            self._tokens += len(event.tokens) * counts
            began = self._submitted[event.handle]
            if event.handle not in self._first and len(event.tokens):
                self._first[event.handle] = now
                if began >= self._since:
                    self._ttft.append((now - began) * 1e3)
            if event.reason:
                ended += 1
                first = self._first.pop(event.handle, now)
                del self._submitted[event.handle]
                if began >= self._since and event.usage > 1:
                    self._tpot.append((now - first) * 1e3 / (event.usage - 1))
        if ended:
            self._submit(ended)


class ClientProcess:
    """The client seen from the bench. A context manager.

    Parameters
    ----------
    cores : set of int
        Where it may run.

    Raises
    ------
    RuntimeError
        It ended, or did not answer in time.
    """

    def __init__(self, cores: set[int]) -> None:
        where = ",".join(map(str, sorted(cores)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "blink_numba.bench.client", where],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, deadline_s: float = ANSWER_S, **command: Any) -> dict[str, Any]:
        """Send a command; its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(deadline_s):
                raise RuntimeError(f"the client did not answer {sorted(command)} within {deadline_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the bench's client ended with status {self._process.wait()}")
        return json.loads(line)

    def measure(self, load: Load) -> dict[str, Any]:
        """Run a load; what `ClosedLoop.run` returns."""
        return self.ask(load.warmup_s + load.seconds + ANSWER_S, load=asdict(load))

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def main() -> None:
    """Serve commands from standard input."""
    from blink_numba.processes import die_with_parent

    die_with_parent()
    if len(sys.argv) > 1:
        os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
    port: FrontEndPort | None = None
    transport: ShmTransport | None = None
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        if "attach" in command:
            transport = ShmTransport.attach(command["attach"], deadline_s=10.0)
            port = FrontEndPort(transport)
            port.warm_up()
        elif "load" in command:
            assert port is not None
            assert transport is not None
            loop = ClosedLoop(port, transport.memory.view.flight, Load(**command["load"]))
            answer = loop.run()
            loop.end_all()
        elif "detach" in command and port is not None:
            answer = {"left": port.close()}
            port = transport = None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
