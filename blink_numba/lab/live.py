"""The same workloads against a running engine: arrivals in real time, decisions recorded.

What a simulation predicts is measured here, and what was decided can be replayed
(`blink_numba.lab.agreement`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from blink_numba.bench.flight import copy_entries, newest
from rdma import FrontEndPort, Handle, Request, RingFull, ShmTransport, SubmitError
from ring.layout import FLIGHT_WORDS
from ring.memory import RingMemory
from ring.recorder import Entry, Event
from ring.views import RingView
from scheduler.simulator import Requests
from scheduler.simulator.replay import Asked

SECOND = 1_000_000_000


class Recording:
    """Follows a flight recorder, without gaps as long as `look` is called often.

    Parameters
    ----------
    flight : int64[entries * 8]
    whole : bool
        From its first entry on, as a replay needs it; else from now on.
    """

    def __init__(self, flight: np.ndarray, *, whole: bool = False) -> None:
        self._flight, self._next, self.lost = flight, 0 if whole else int(newest(flight)), 0
        self._out = np.zeros((flight.shape[0] // FLIGHT_WORDS, FLIGHT_WORDS), np.int64)
        self._parts: list[np.ndarray] = []

    def look(self) -> None:
        """Take what is new."""
        copied, self._next, lost = copy_entries(self._flight, self._next, self._out)
        self.lost += int(lost)
        if copied:
            self._parts.append(self._out[:copied].copy())

    def entries(self) -> list[Entry]:
        """All that was taken, oldest first."""
        self.look()
        return [entry for part in self._parts for entry in as_entries(part)]


def as_entries(rows: np.ndarray) -> Iterable[Entry]:
    """Entries from words, int64[n, 8]."""
    for number, moment, event, *arguments in rows[:, :7].tolist():
        yield Entry(number - 1, moment, Event(event), tuple(arguments))


@dataclass(frozen=True)
class Measured:
    """What clients of a running engine saw; nanoseconds from the first arrival.

    Attributes
    ----------
    requests : Requests
        With the arrivals as they were: when each was submitted.
    first, done : int64[n]
        First token and end at the client, -1 where they never came.
    asked : dict
        Each request by (slot, incarnation), for a replay.
    recording : list of Entry
        The scheduler's decisions meanwhile, or since its start.
    """

    requests: Requests
    first: np.ndarray
    done: np.ndarray
    asked: dict[tuple[int, int], Asked]
    recording: list[Entry]

    @property
    def ttft_ms(self) -> np.ndarray:
        """Of those answered."""
        kept = self.first >= 0
        return (self.first - self.requests.arrive)[kept] / 1e6

    @property
    def tpot_ms(self) -> np.ndarray:
        """Of those with two tokens at least."""
        kept = (self.done >= 0) & (self.requests.output > 1)
        return (self.done - self.first)[kept] / (self.requests.output[kept] - 1) / 1e6


def run_live(ring_name: str, requests: Requests, *, vocab_size: int = 256, seed: int = 0,
             deadline_s: float = 300.0, whole: bool = False) -> Measured:  # fmt: skip
    """Submit requests at their arrivals and wait for all answers.

    Parameters
    ----------
    ring_name : str
        Of a running engine; this takes its front end 0.
    requests : Requests
        Open arrivals; prompts are random tokens below `vocab_size`.
    whole : bool
        Record from the scheduler's first decision on: for a replay, soon after it started.

    Raises
    ------
    RuntimeError
        Not all were answered within `deadline_s` seconds, or one was rejected.
    """
    if requests.users:
        raise ValueError("a live run takes open arrivals, not a closed loop")
    memory = RingMemory.attach(ring_name)
    recording = Recording(memory.view.flight, whole=whole)
    with FrontEndPort(ShmTransport(memory), 0) as port:
        port.warm_up()
        return _Client(port, memory.view, recording, requests, vocab_size, seed).run(deadline_s)


class _Client:
    def __init__(self, port: FrontEndPort, ring: RingView, recording: Recording, requests: Requests,
                 vocab_size: int, seed: int) -> None:  # fmt: skip
        self._port, self._ring, self._recording, self._requests = port, ring, recording, requests
        rng = np.random.default_rng(seed)
        self._prompts = [rng.integers(3, vocab_size, n).astype(np.int32) for n in requests.prompt]
        self._numbers: dict[Handle, int] = {}
        self._asked: dict[tuple[int, int], Asked] = {}
        self._arrived = np.full(len(requests), -1, np.int64)
        self._first = self._arrived.copy()
        self._done = self._arrived.copy()

    def run(self, deadline_s: float) -> Measured:
        count, sent, ended = len(self._requests), 0, 0
        origin = time.monotonic_ns()
        give_up = origin + int(deadline_s * SECOND)
        while ended < count:
            now = time.monotonic_ns()
            if now > give_up:
                left = count - ended
                raise RuntimeError(f"{left} of {count} requests were not answered in {deadline_s:g} s")
            while sent < count and self._requests.arrive[sent] <= now - origin and self._submit(sent, origin):
                sent += 1
            ended += self._take(origin)
            self._recording.look()
        return self._measured()

    def _submit(self, number: int, origin: int) -> bool:
        asked = self._requests
        request = Request(
            self._prompts[number], max_tokens=int(asked.output[number]), ignore_eos=True,
            priority=int(asked.priority[number]), tenant=int(asked.tenant[number]),
        )  # fmt: skip
        now = time.monotonic_ns()
        try:
            handle = self._port.submit(request)
        except RingFull:
            return False
        except SubmitError as error:
            raise RuntimeError(f"request {number} was rejected: {error}") from error
        self._arrived[number] = now - origin
        self._numbers[handle] = number
        self._asked[handle.slot, handle.incarnation] = Asked(
            int(asked.prompt[number]), int(asked.output[number]), priority=request.priority,
            tenant=request.tenant,
        )  # fmt: skip
        return True

    def _take(self, origin: int) -> int:
        events = self._port.poll()
        if not events:
            time.sleep(self._port.idle_interval())
            return 0
        now, ended = time.monotonic_ns() - origin, 0
        for event in events:
            number = self._numbers[event.handle]
            if self._first[number] < 0 and len(event.tokens):
                self._first[number] = now
            if event.reason:
                self._done[number] = now
                ended += 1
        return ended

    def _measured(self) -> Measured:
        asked = self._requests
        order = np.argsort(self._arrived, kind="stable")
        seen = Requests.of(
            self._arrived[order], asked.prompt[order], asked.output[order],
            priority=asked.priority[order], tenant=asked.tenant[order],
        )  # fmt: skip
        return Measured(seen, self._first[order], self._done[order], self._asked, self._recording.entries())
