"""A front end's port to a ring: submit, cancel, poll. One thread owns it.

The port ties together slot tracker, arena, submitter and token reader over one transport,
and keeps the small writes (release, cancel, beat) until the next batch that is posted anyway.
While requests are in service there always is a next batch: their answers have to be polled.
The poll that ends the last of them posts what is left itself, for nobody may call again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rdma.arena import Arena
from rdma.attach import take_place
from rdma.errors import SubmitError
from rdma.operations import PUBLISH, READ, Operations
from rdma.reader import TokenReader
from rdma.slots import SlotTracker
from rdma.staging import Share, Staging
from rdma.status import SchedulerStatus
from rdma.submit import Placed, Request, Submitter
from rdma.transport import DEADLINE_S, Transport, TransportError
from ring import layout as at
from ring.sections import LINE
from ring.states import PREFILL_PENDING, Reason
from ring.words import CANCEL, INCARNATION_MASK, RELEASE, pack_req

BEAT_INTERVAL_S = 0.02
CONTROL_ROWS = 8  # rows of a poll's first batch besides releases and cancels

# adaptive polling: how long to wait after so many polls in a row that brought nothing
_SPIN_POLLS = 8
_SHORTEST_WAIT_S = 20e-6
_LONGEST_WAIT_S = 1e-3
_IDLE_WAIT_S = 5e-3

_REASONS = tuple(Reason)


class Handle(NamedTuple):
    """Names a request for good: slots are used again, incarnations are not."""

    slot: int
    incarnation: int


@dataclass(slots=True)
class Event:
    """News of a request.

    Attributes
    ----------
    handle : Handle
    tokens : int32[n]
        The tokens since the event before, in order; may be empty when final.
    reason : Reason
        NONE unless this is the last event of the request.
    usage : int
        Tokens of the answer so far.
    records : int64[n, pairs] or None
        Log-probabilities of the tokens (`ring.logprobs.unpack_records`) if the request asked.
    """

    handle: Handle
    tokens: np.ndarray
    reason: Reason
    usage: int
    records: np.ndarray | None = None


class FrontEndPort:
    """Front end `front_end` of the ring behind `transport`.

    Parameters
    ----------
    transport : Transport
        Owned and closed by the port.
    front_end : int
    takeover : bool
        Replace a predecessor that ended without closing its port, once its end is confirmed:
        its requests are ended by the scheduler first.
    deadline_s : float
        Bound of every wait for the scheduler or the peer, in seconds.

    Raises
    ------
    FrontEndHeld
        Another front end lives in this place.
    AttachError
        The place cannot be taken; the message names the remedy.
    """

    def __init__(
        self, transport: Transport, front_end: int = 0, *, takeover: bool = False,
        deadline_s: float = DEADLINE_S,
    ) -> None:  # fmt: skip
        self.transport = transport
        self.share = Share(transport.ring, front_end)
        self._deadline_s = deadline_s
        self._staging = Staging(self.share)
        self._staging.bind(transport.allocate(self._staging.words))
        self._slots = SlotTracker(self.share.slots)
        self._arena = Arena(self.share.arena_start, self.share.arena_tokens)
        self._submitter = Submitter(transport, self.share, self._staging, self._slots, self._arena)
        self._reader = TokenReader(self.share, self._staging)
        self._placed: list[Placed | None] = [None] * self.share.slots
        self._handles: list[Handle] = [Handle(-1, -1)] * self.share.slots
        self._commands = self._staging.view("commands")
        self._port = self._staging.view("port")
        self._batch = Operations(2 * self.share.slots + CONTROL_ROWS)
        self._pending = Operations(2 * self.share.slots)  # req words to publish with the next batch
        self._next_beat = 0.0
        self._empty_polls = 0
        self._closed = False
        head = take_place(
            transport, self.share, self._staging, self._slots, takeover=takeover, deadline_s=deadline_s
        )
        self._reader.start_at(head)

    def warm_up(self) -> None:
        """Compile what a turn needs, by a turn about nothing, so that the first request does not wait."""
        self._submitter.place((), self._track, self._pending)
        batch = self._take_pending()
        self._reader.add_control_read(batch)
        self.transport.post(batch)
        self.transport.complete(self._deadline_s)
        self.transport.post(self._reader.token_reads())
        self.transport.complete(self._deadline_s)
        self._reader.deliver()

    # --- requests ---------------------------------------------------------------------------

    def submit(self, request: Request) -> Handle:
        """Submit one request.

        Raises
        ------
        SubmitError
            One of its subclasses; nothing was written.
        """
        outcome = self.submit_many((request,))[0]
        if isinstance(outcome, SubmitError):
            raise outcome
        return outcome

    def submit_many(self, requests: Sequence[Request]) -> list[Handle | SubmitError]:
        """Submit a burst as one chain; for each request its handle or why it was refused."""
        outcome: list[Handle | SubmitError] = []
        for placed in self._submitter.place(requests, self._track, self._pending):
            if isinstance(placed, SubmitError):
                outcome.append(placed)
            else:
                outcome.append(self._handles[placed.slot])
        self._empty_polls = 0
        return outcome

    def _track(self, placed: Placed) -> None:
        self._placed[placed.slot] = placed
        self._handles[placed.slot] = Handle(self.share.first_slot + placed.slot, placed.incarnation)
        self._reader.track(
            placed.slot, placed.incarnation, placed.output_start, placed.max_tokens, placed.pairs,
            placed.records_start,
        )  # fmt: skip

    def cancel(self, handle: Handle) -> bool:
        """Ask the scheduler to end a request, with the next poll or burst; its final event still comes.

        Returns False, and does nothing, when the request has ended already.
        """
        slot = handle.slot - self.share.first_slot
        if not 0 <= slot < self.share.slots or self._placed[slot] is None or self._handles[slot] != handle:
            return False
        self._command(slot, CANCEL)
        return True

    def live(self) -> int:
        """Requests submitted whose final event was not polled yet."""
        return self._reader.active

    # --- the progress thread's turn -----------------------------------------------------------

    def poll(self) -> list[Event]:
        """What happened since the last poll, requests without a token yet first.

        Two posts at most: control records and log head; then the log. The poll that ends the
        last request in service makes a third of the releases: no slot waits for a later call.
        """
        transport, reader = self.transport, self._reader
        batch = self._take_pending()
        self._add_beat(batch)
        if reader.active:
            reader.add_control_read(batch)
        transport.post(batch)
        if not reader.active:
            self._empty_polls += 1
            return []
        transport.complete(self._deadline_s)
        rows = reader.token_reads()
        if rows.count:
            transport.post(rows)
            transport.complete(self._deadline_s)
        return self._events(reader.deliver())

    def _events(self, count: int) -> list[Event]:
        if not count:
            self._empty_polls += 1
            return []
        self._empty_polls = 0
        slots, starts, ends, reasons, usages, pairs, records = self._reader.events[:count].T.tolist()
        tokens = self._reader.tokens[: ends[-1]].copy()
        handles = self._handles
        found = [
            Event(handles[slot], tokens[start:end], _REASONS[reason], usage)
            for slot, start, end, reason, usage in zip(slots, starts, ends, reasons, usages, strict=True)
        ]
        if any(pairs):
            for event, width, first in zip(found, pairs, records, strict=True):
                if width:
                    words = self._reader.records[first : first + width * len(event.tokens)]
                    event.records = words.reshape(-1, width).copy()
        ended = [slot for slot, reason in zip(slots, reasons, strict=True) if reason]
        for slot in ended:
            self._release(slot)
        if ended and not self._reader.active:
            # A peer lost at this moment loses no answer: the next use of the transport tells of it.
            with suppress(TransportError):
                self._flush()
        return found

    def _release(self, slot: int) -> None:
        """Empty a slot. Only after the reads of its tokens are complete."""
        placed = self._placed[slot]
        assert placed is not None
        self._placed[slot] = None
        self._command(slot, RELEASE)
        for extent in placed.extents:
            self._arena.release(extent)
        self._slots.give_back(slot)

    def _command(self, slot: int, command: int) -> None:
        # Not in the mirror of `req`: one chain may release a slot and submit to it again.
        word = pack_req(self._handles[slot].incarnation, command)
        if self._commands[slot] == word:
            return  # said already; so no slot has more than two rows in a batch
        self._commands[slot] = word
        self._pending.add(PUBLISH, self.share.req + slot, self._staging.commands + slot, 1)

    def _take_pending(self) -> Operations:
        """A batch that begins with the small writes that wait."""
        self._batch.take(self._pending)
        return self._batch

    def _flush(self) -> None:
        """Post the small writes that wait, such as releases, now."""
        self.transport.post(self._take_pending())

    def _add_beat(self, batch: Operations) -> None:
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + BEAT_INTERVAL_S
            self._port[at.P_BEAT] += 1
            self._port[at.P_LOG_TAIL] = self._reader.tail
            batch.add(PUBLISH, self.share.line(at.FE_PORT), self._staging.port, LINE)

    def beat(self) -> None:
        """Show life without polling; `poll` does it too."""
        self._next_beat = 0.0
        batch = self._take_pending()
        self._add_beat(batch)
        self.transport.post(batch)
        self.transport.complete(self._deadline_s)

    def idle_interval(self) -> float:
        """Seconds to wait before the next poll: none while news comes, longer the longer none does."""
        quiet = self._empty_polls - _SPIN_POLLS
        if quiet < 0:
            return 0.0
        longest = _LONGEST_WAIT_S if self._reader.active else _IDLE_WAIT_S
        return min(_SHORTEST_WAIT_S * (1 << min(quiet // 4, 12)), longest)

    # --- observation --------------------------------------------------------------------------

    def status(self) -> SchedulerStatus:
        """The scheduler's heartbeat and counters, now."""
        batch = self._take_pending()
        batch.add(READ, self.share.ring.starts[at.STATUS], self._staging.status, at.STATUS_WORDS)
        self.transport.post(batch)
        self.transport.complete(self._deadline_s)
        return SchedulerStatus.of(self._staging.view("status"))

    def seated(self) -> np.ndarray:
        """Which slots held a request that had a seat at the last poll; bool[slots of the share]."""
        words = self._staging.view("ctl")[:: at.CTL_WORDS]
        current = (words >> 32) & INCARNATION_MASK == self._slots.incarnation
        return current & ((words & 0xF) > PREFILL_PENDING)

    def free_slots(self) -> int:
        """Slots of this front end's share that a submission may take."""
        return self._slots.free_count

    def counts(self) -> dict[str, int]:
        """Counters of transport and reader since the port was made."""
        counters = self.transport.counters
        return {
            "posts": counters.posts,
            "operations": counters.operations,
            "bytes_read": counters.bytes_read,
            "bytes_written": counters.bytes_written,
            "reconnects": counters.reconnects,
            **self._reader.counts(),
        }

    # --- the end --------------------------------------------------------------------------------

    def close(self, deadline_s: float = 5.0) -> int:
        """Cancel what is live, wait for its end, write what waits, leave the place free for a successor.

        Returns
        -------
        int
            Requests that had not ended by the deadline. Then, or when the peer is gone, the
            place stays held, and a successor must take it over.
        """
        if self._closed:
            return 0
        self._closed = True
        left = self.live()
        try:
            left = self._end_all(deadline_s)
            if not left:
                self._port[at.P_PID] = 0
                self._port[at.P_STARTED] = 0
            self.beat()
        except TransportError:
            pass  # the peer is gone: there is nobody to tell
        finally:
            self.transport.close()
        return left

    def _end_all(self, deadline_s: float) -> int:
        give_up = time.monotonic() + deadline_s
        for slot, placed in enumerate(self._placed):
            if placed is not None:
                self._command(slot, CANCEL)
        self._flush()
        while self.live() and time.monotonic() < give_up:
            if not self.poll():
                time.sleep(self.idle_interval())
        return self.live()

    def __enter__(self) -> FrontEndPort:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
