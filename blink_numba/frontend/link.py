"""The progress thread: owns the port, and trades batches with the event loop.

Commands (submit, cancel) come through a deque and an event that wakes the thread; what a
poll brought goes to the loop in one call, however many requests it concerns. The thread also
watches the scheduler's heartbeat, keeps requests that found the ring full for a bounded time,
and tells every request when the engine is gone. An engine that comes back with the same ring
is used again at once; one that made a new ring is attached to.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

import numpy as np

from blink_numba.frontend.connector import Connector
from blink_numba.frontend.submission import EngineGone, Health, Sink, Submission
from rdma.errors import ArenaFull, AttachError, RingFull, SubmitError
from rdma.port import FrontEndPort, Handle
from rdma.submit import Request
from rdma.transport import TransportError
from ring.layout import PHASE_PARKED, PHASE_RUNNING
from ring.memory import RingError
from ring.states import Reason

STATUS_INTERVAL_S = 0.1
ATTACH_INTERVAL_S = 0.25
IDLE_WAIT_S = 0.05
SEAT_LOOK_S = 0.001
FULL_RETRY_S = 0.002
CLOSED = "the engine was closed"


class EngineLink:
    """Front end's connection to the engine.

    Parameters
    ----------
    connector : Connector
        Used by the progress thread, again and again while there is no engine.
    queue_timeout_s, heartbeat_timeout_s, engine_grace_s, stall_timeout_s : float
        As in `FrontEndSettings`.
    """

    def __init__(self, connector: Connector, *, queue_timeout_s: float = 5.0,
                 heartbeat_timeout_s: float = 1.5, engine_grace_s: float = 1.0,
                 stall_timeout_s: float = 60.0) -> None:  # fmt: skip
        self._connector = connector
        self._queue_timeout_s = queue_timeout_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._engine_grace_s = engine_grace_s
        self._stall_timeout_s = stall_timeout_s
        self._commands: deque[tuple[str, Submission]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._ended = False  # the progress thread takes no more commands
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._call: Callable[..., object] = _call_here
        self._port: FrontEndPort | None = None
        self._live: dict[Handle, Submission] = {}
        self._waiting: deque[Submission] = deque()
        self._unseated: dict[int, Submission] = {}  # by slot
        self._heartbeat, self._beats = -1, 0  # last seen; how often it moved since the port was made
        self._moved_at = 0.0
        self._next_status = self._next_attach = self._next_retry = self._next_seat_look = 0.0
        self.health = Health(False, "not attached to the ring yet")
        # Of the engine seen last; 0 before the first one.
        self.max_model_len = self.vocab_size = self.blocks = 0

    # --- the user's side ---

    def start(self, call: Callable[..., object] | None = None) -> None:
        """Begin.

        Parameters
        ----------
        call : callable
            ``call(function, *arguments)`` has a function called where the sinks live, such as
            an event loop's ``call_soon_threadsafe``; sinks are called by the progress thread
            itself by default.
        """
        if call is not None:
            self._call = call
        self._thread.start()

    def stop(self, deadline_s: float) -> None:
        """Cancel what is live, release the slots and end the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(deadline_s + 1.0)

    def submit(self, requests: list[tuple[Request, Sink]]) -> list[Submission]:
        """Hand over requests; refusals arrive at the sinks as `failed`.

        Raises
        ------
        EngineGone
            There is no engine at the moment, or the link was stopped.
        """
        if self._stopping:
            raise EngineGone(CLOSED)
        if not self.health.ok:
            raise EngineGone(self.health.reason)
        give_up = time.monotonic() + self._queue_timeout_s
        submissions = [Submission(request, sink, give_up) for request, sink in requests]
        self._commands.extend(("submit", submission) for submission in submissions)
        self._wake.set()
        if self._ended:  # while this was handed over
            self._fail_commands(CLOSED)
        return submissions

    def cancel(self, submission: Submission) -> None:
        """Stop a request; its sink hears no more of it."""
        if not submission.cancelled:
            submission.cancelled = True
            self._commands.append(("cancel", submission))
            self._wake.set()

    @property
    def waiting(self) -> int:
        """Requests that wait for room in the ring."""
        return len(self._waiting)

    @property
    def live(self) -> int:
        """Requests that hold a slot."""
        return len(self._live)

    # --- the progress thread's side ---

    def _run(self) -> None:
        while not self._stopping:
            now = time.monotonic()
            try:
                if self._port is None:
                    self._attach(now)
                wait = self._turn(now) if self._port is not None else ATTACH_INTERVAL_S
            except TransportError as error:
                self._lose(str(error))
                wait = ATTACH_INTERVAL_S
            if wait > 0.0:
                self._wake.wait(wait)
            self._wake.clear()
        self._ended = True
        self.health = Health(False, CLOSED, self.health.status)
        self._fail_all(CLOSED)
        self._fail_commands(CLOSED)
        self._close()

    def _attach(self, now: float) -> None:
        if now >= self._next_attach:
            self._next_attach = now + ATTACH_INTERVAL_S
            try:
                self._port = self._connector.connect()
            except (RingError, AttachError, TransportError) as error:
                self.health = Health(False, str(error))
            else:
                self._heartbeat, self._beats, self._next_status = -1, 0, 0.0
                ring = self._port.share.ring
                self.max_model_len, self.vocab_size, self.blocks = ring.max_model_len, ring.vocab_size, 0
        if self._port is None:
            self._fail_commands(self.health.reason)

    def _turn(self, now: float) -> float:
        """One look at everything; how long to wait before the next, in seconds."""
        port = self._port
        assert port is not None
        worked = self._take_commands()
        if self._waiting and now >= self._next_retry:
            self._retry(now)
        events = port.poll()
        if self._unseated and now >= self._next_seat_look:
            self._look_at_seats(now)
        if events:
            self._hand_over(events)
        if now >= self._next_status:
            self._next_status = now + STATUS_INTERVAL_S
            port.beat()
            self._look_at_heartbeat(now)
            if self._port is None:
                return ATTACH_INTERVAL_S
        if worked or events:
            return 0.0
        if not self._live:
            return FULL_RETRY_S if self._waiting else IDLE_WAIT_S
        return port.idle_interval()

    def _take_commands(self) -> bool:
        if not self._commands:
            return False
        fresh: list[Submission] = []
        while self._commands:
            command, submission = self._commands.popleft()
            if command == "submit":
                fresh.append(submission)
            elif submission.handle is not None:
                if submission.handle in self._live and self._port is not None:
                    self._port.cancel(submission.handle)
        fresh = [submission for submission in fresh if not submission.cancelled]
        room = 0 if self._waiting else self._port.free_slots() if self._port is not None else 0
        self._place(fresh[:room])
        self._waiting.extend(fresh[room:])  # behind those that wait already
        return True

    def _place(self, submissions: list[Submission]) -> None:
        """Submit in order; what finds no room waits, with everything after it."""
        assert self._port is not None
        if not submissions:
            return
        outcomes = self._port.submit_many([submission.request for submission in submissions])
        failed: list[tuple[Sink, Exception]] = []
        for submission, outcome in zip(submissions, outcomes, strict=True):
            if isinstance(outcome, RingFull | ArenaFull):
                self._waiting.append(submission)
            elif isinstance(outcome, SubmitError):
                failed.append((submission.sink, outcome))
            else:
                submission.handle = outcome
                self._live[outcome] = submission
                self._unseated[outcome.slot - self._port.share.first_slot] = submission
                if submission.cancelled:  # while it was being placed
                    self._port.cancel(outcome)
        if failed:
            self._tell(self._deliver_failures, failed)

    def _retry(self, now: float) -> None:
        """Place what waits, oldest first, as far as there is room; give up on what waited too long."""
        assert self._port is not None
        self._next_retry = now + FULL_RETRY_S
        late: list[tuple[Sink, Exception]] = []
        while self._waiting and (self._waiting[0].cancelled or self._waiting[0].give_up <= now):
            submission = self._waiting.popleft()
            if not submission.cancelled:
                late.append((submission.sink, RingFull(
                    "the server is full: its ring had no room for this request in time; try again later"
                )))  # fmt: skip
        free = self._port.free_slots()
        chosen = list(islice(self._waiting, free))
        for _ in chosen:
            self._waiting.popleft()
        rest, self._waiting = self._waiting, deque()
        self._place([submission for submission in chosen if not submission.cancelled])
        self._waiting.extend(rest)
        if late:
            self._tell(self._deliver_failures, late)

    def _look_at_seats(self, now: float) -> None:
        """Stamp the requests that got their seats since the last look."""
        assert self._port is not None
        self._next_seat_look = now + SEAT_LOOK_S
        for slot in np.flatnonzero(self._port.seated()).tolist():
            submission = self._unseated.pop(slot, None)
            if submission is not None:
                submission.seated_at = now

    def _hand_over(self, events: list) -> None:
        when = time.monotonic()
        batch = []
        for event in events:
            final = event.reason is not Reason.NONE
            submission = self._live.pop(event.handle, None) if final else self._live.get(event.handle)
            if submission is not None and not submission.cancelled:
                batch.append((submission.sink, event.tokens.tolist(), event.reason, event.records))
        if batch:
            self._tell(self._deliver, batch, when)

    def _look_at_heartbeat(self, now: float) -> None:
        assert self._port is not None
        status = self._port.status()
        self.blocks = max(self.blocks, status.blocks_free)  # all are free when the engine starts
        if status.heartbeat != self._heartbeat:
            self._beats += self._heartbeat >= 0
            self._heartbeat, self._moved_at = status.heartbeat, now
        silent = now - self._moved_at
        if not self._connector.engine_alive():
            self.health = Health(False, "the engine process is gone", status)
            if self._connector.replaced():
                self._lose(self.health.reason)
            elif silent > self._engine_grace_s:
                self._fail_all(self.health.reason)
        elif silent > self._heartbeat_timeout_s:
            self.health = Health(False, f"the scheduler is silent since {silent:.1f} s", status)
            if silent > self._stall_timeout_s:
                self._fail_all(self.health.reason)
        elif status.phase not in (PHASE_RUNNING, PHASE_PARKED):
            self.health = Health(False, "the scheduler is not running", status)
        elif self._beats:
            self.health = Health(True, "", status)

    def _lose(self, reason: str) -> None:
        """Give up the port: its ring is out of reach for good."""
        self._fail_all(reason)
        self._live.clear()
        self._unseated.clear()
        self.health = Health(False, reason, self.health.status)
        port, self._port = self._port, None
        if port is not None:
            port.transport.close()

    def _fail_all(self, reason: str) -> None:
        """Every request in service fails; one that the engine still has is cancelled there."""
        gone = EngineGone(reason)
        failures = [(s.sink, gone) for s in (*self._live.values(), *self._waiting) if not s.cancelled]
        for submission in self._live.values():
            submission.cancelled = True
            if self._port is not None and submission.handle is not None:
                self._port.cancel(submission.handle)
        self._waiting.clear()
        if failures:
            self._tell(self._deliver_failures, failures)

    def _fail_commands(self, reason: str) -> None:
        gone, failures = EngineGone(reason), []
        with suppress(IndexError):  # empty, maybe since another thread empties it too
            while True:
                command, submission = self._commands.popleft()
                if command == "submit":
                    failures.append((submission.sink, gone))
        if failures:
            self._tell(self._deliver_failures, failures)

    def _close(self) -> None:
        port, self._port = self._port, None
        if port is not None:
            with suppress(TransportError):  # the engine may have gone first: nothing is left to release
                port.close(deadline_s=2.0)

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._call(function, *arguments)
        except RuntimeError:
            self._stopping = True  # the event loop is closed: nobody listens any more

    # --- where the sinks live ---

    @staticmethod
    def _deliver(batch: list[tuple[Sink, list[int], Reason, np.ndarray | None]], when: float) -> None:
        for sink, tokens, reason, records in batch:
            sink.progress(tokens, reason, when, records)

    @staticmethod
    def _deliver_failures(failures: list[tuple[Sink, Exception]]) -> None:
        for sink, error in failures:
            sink.failed(error)


def _call_here(function: Callable[..., None], *arguments: object) -> None:
    function(*arguments)
