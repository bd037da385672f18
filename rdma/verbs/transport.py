"""The transport of a front end on another host: one-sided reads and writes of a queue pair.

A batch is one chain with one completion. What was posted and not completed is kept, so that
after an error of the queue pair or the end of the connection the session is taken up again
and the batches run once more, in order: batches may run twice (`rdma.transport`), so no
request is lost and none is submitted twice.

A process that ends loses its memory regions before its queue pairs, so for a moment it refuses
as if an access were not allowed. Hence no status is taken for a refusal at once: the session is
taken up again first, and only a host that is known to live after it has refused the same chain
for the second time meant it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque

import numpy as np

from rdma.operations import READ, Operations
from rdma.transport import DEADLINE_S, Fenced, Transport, TransportError, TransportLost
from rdma.verbs.grants import GrantTable
from rdma.verbs.provider import (
    SILENT,
    UNANSWERED,
    WC_SUCCESS,
    Device,
    OneSided,
    QueuePair,
    Region,
    open_device,
    status_text,
)
from rdma.verbs.welcome import Welcome
from rdma.verbs.wire import KEY_VARIABLE, Refused, Wire, check_key
from ring.layout import RING_VERSION

QUEUE_DEPTH = 256
_SPINS = 200  # polls of the completion queue before giving way
_LOOK_AT_WIRE_S = 0.005
_RETRY_S = 0.05
_LEAVE_S = 1.0
_SILENT = "the ring's host does not answer over RDMA (RoCE v2 needs UDP port 4791 open)"


class VerbsTransport(Transport):
    """Access to a ring through RDMA.

    Parameters
    ----------
    host, port : str, int
        Of the ring's `rdma.verbs.host.RingHost`.
    front_end : int
        The place that will be taken.
    key : str or bytes, optional
        ``BLINK_NUMBA_RDMA_KEY`` by default.
    takeover : bool
        As in `rdma.port.FrontEndPort`.
    device, gid_index, provider : optional
        As in `rdma.verbs.provider.open_device`.
    deadline_s : float
        Bound of connecting, and of connecting again after a fault.
    depth : int
        Of the send queue.

    Attributes
    ----------
    about : dict
        What the host tells of itself, such as the model's name.

    Raises
    ------
    Refused, TransportLost, VerbsUnavailable
    """

    name = "verbs"

    def __init__(
        self, host: str, port: int, front_end: int = 0, *, key: str | bytes | None = None,
        takeover: bool = False, device: str | None = None, gid_index: int | None = None,
        provider: str | None = None, deadline_s: float = DEADLINE_S, depth: int = QUEUE_DEPTH,
    ) -> None:  # fmt: skip
        self._peer = (host, port)
        self._front_end, self._takeover, self._deadline_s, self._depth = (
            front_end,
            takeover,
            deadline_s,
            depth,
        )
        self._key = check_key(key if key is not None else os.environ.get(KEY_VARIABLE))
        self._device: Device = open_device(device, gid_index=gid_index, provider=provider)
        self._session = 0
        self._epoch = 0
        self._region: Region | None = None
        self._staging = np.zeros(0, np.int64)
        self._in_flight: deque[tuple[int, list[list[int]]]] = deque()  # number, rows of each chain
        self._room = depth
        self._number = 0
        self._host = 0  # which life of the ring's host it is attached to
        self._refused: tuple[int, list[list[int]]] | None = None  # who refused last, and which chain
        self._fruitless = 0  # errors since a chain completed
        self._wire: Wire | None = None
        self._queue: QueuePair | None = None
        try:
            welcome = self._attach(deadline_s)
        except BaseException:
            self._device.close()
            raise
        self.about = welcome.about
        super().__init__(welcome.ring)

    # --- the session -------------------------------------------------------------------------------

    def _attach(self, deadline_s: float) -> Welcome:
        """Connect, make a queue pair, and take up the session if there was one."""
        give_up = time.monotonic() + deadline_s
        wire = Wire.connect(*self._peer, self._key, deadline_s)
        queue = None
        try:
            queue = self._device.queue_pair(self._depth)
            answer = wire.ask(
                {
                    "op": "attach", "front_end": self._front_end, "takeover": self._takeover,
                    "session": self._session, "epoch": self._epoch, "ring_version": RING_VERSION,
                    "queue": queue.address.to_json(),
                },
                max(give_up - time.monotonic(), _RETRY_S),
            )  # fmt: skip
            try:
                welcome = Welcome.from_json(answer)
            except ValueError as error:
                raise TransportError(
                    f"the ring's host is not understood ({error}): install the same blink-numba on both hosts"
                ) from None
            queue.connect(welcome.queue)
        except BaseException:
            if queue is not None:
                queue.close()
            wire.close()
            raise
        self._wire, self._queue, self._grants = wire, queue, GrantTable(welcome.grants)
        self._session, self._epoch, self._host = welcome.session, welcome.ring.epoch, welcome.host
        self._room = self._depth
        return welcome

    def _recover(self, why: str, give_up: float, refused: list[list[int]] | None = None) -> None:
        """Take the session up again and run what was not completed once more.

        Parameters
        ----------
        refused : rows of a chain, optional
            The host refused this chain, or is about to end.
        """
        verdict = None if refused is None else (self._host, refused)
        self._disconnect()
        if self._fruitless:
            time.sleep(_RETRY_S)
        self._fruitless += 1
        try:
            self._attach_again(why, give_up)
        except BaseException:
            self._give_up()
            raise
        self.counters.reconnects += 1
        if verdict is not None:
            if verdict == self._refused and verdict[0] == self._host:
                self._give_up()
                raise TransportError(f"{why}: the ring's host lives, and refuses this access again")
            self._refused = verdict
        again = [rows for _, rows in self._in_flight]
        self._in_flight.clear()
        for rows in again:
            self._send(rows, give_up)

    def _attach_again(self, why: str, give_up: float) -> None:
        latest = ""
        while time.monotonic() < give_up:
            try:
                self._attach(max(give_up - time.monotonic(), _RETRY_S))
                return
            except Refused as refusal:
                if refusal.cause == "fenced":
                    raise Fenced(str(refusal)) from None
                raise
            except TransportLost as error:
                latest = f"; then {error}"
            time.sleep(_RETRY_S)
        raise TransportLost(f"the ring's host cannot be reached again: {why}{latest}")

    def _give_up(self) -> None:
        """Forget everything: this connection cannot go on."""
        self._in_flight.clear()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    # --- batches -------------------------------------------------------------------------------------

    def allocate(self, words: int) -> np.ndarray:
        self._staging = np.zeros(words, np.int64)
        self._region = self._device.register(
            self._staging.ctypes.data, self._staging.nbytes, remote_read=False, remote_write=False
        )
        return self._staging

    def _run(self, batch: Operations) -> None:
        self._send(batch.table[: batch.count].tolist(), time.monotonic() + self._deadline_s)

    def _send(self, rows: list[list[int]], give_up: float) -> None:
        """Post rows as one chain, or as few as the queue's depth allows."""
        if self._queue is None:
            raise TransportLost("this connection has ended: attach anew")
        for start in range(0, len(rows), self._depth):
            part = rows[start : start + self._depth]
            self.counters.posts += start > 0
            while self._room < len(part):  # the queue's depth bounds what is in flight
                self._collect(give_up)
            assert self._region is not None
            chain = [self._operation(*row) for row in part]  # refused here, it was never in flight
            self._number += 1
            self._in_flight.append((self._number, part))
            self._room -= len(part)
            try:
                self._queue.post(chain, self._region.lkey, self._number)
            except TransportError as error:  # the device itself fails: a new queue pair is no cure
                self._give_up()
                raise TransportLost(str(error)) from None

    def _operation(self, kind: int, remote: int, local: int, words: int) -> OneSided:
        is_read = kind == READ
        grant = self._grants.find(not is_read, remote, words)
        return OneSided(
            is_read,
            self._staging.ctypes.data + 8 * local,
            8 * words,
            grant.address + 8 * (remote - grant.start),
            grant.rkey,
        )

    def complete(self, deadline_s: float = DEADLINE_S) -> None:
        if self._queue is None:
            raise TransportLost("this connection has ended: attach anew")
        give_up = time.monotonic() + deadline_s
        while self._in_flight:
            self._collect(give_up)

    def _collect(self, give_up: float) -> None:
        """Wait until at least one chain has completed; cure what a new connection cures."""
        look_at_wire = time.monotonic() + _LOOK_AT_WIRE_S
        spins = 0
        while True:
            assert self._queue is not None
            completions = self._queue.poll()
            if completions:
                break
            spins += 1
            if spins < _SPINS:
                continue
            now = time.monotonic()
            if now >= give_up:
                raise TransportLost(f"operations did not complete in time: {_SILENT}")
            if now >= look_at_wire:
                look_at_wire = now + _LOOK_AT_WIRE_S
                assert self._wire is not None
                if self._wire.ended():
                    self._recover("the connection ended", give_up)
                    return
            time.sleep(0.0)
        for number, status in completions:
            if status != WC_SUCCESS:
                self._cure(number, status, give_up)
                return
            self._fruitless, self._refused = 0, None
            while self._in_flight and self._in_flight[0][0] <= number:
                self._room += len(self._in_flight.popleft()[1])

    def _cure(self, number: int, status: int, give_up: float) -> None:
        """Answer the error of a chain with a new connection."""
        why = f"an operation failed: {status_text(status)}"
        if status in UNANSWERED:
            self._recover(f"{why}; {_SILENT}" if status in SILENT else why, give_up)
        else:
            rows = next((rows for one, rows in self._in_flight if one == number), [])
            self._recover(why, give_up, rows)

    # --- the handshake -------------------------------------------------------------------------------

    def identity(self) -> tuple[int, int]:
        return 0, self._session

    def holder_gone(self, front_end: int, pid: int, started: int) -> bool:
        return bool(self._ask({"op": "holder_gone", "pid": pid, "started": started})["gone"])

    def declare_dead(self, front_end: int) -> int:
        return int(self._ask({"op": "declare_dead"})["generation"])

    def _ask(self, request: dict) -> dict:
        if self._wire is None:
            raise TransportLost("this connection has ended: attach anew")
        return self._wire.ask(request, self._deadline_s)

    def break_off(self) -> None:
        """Bring the queue pair into its error state, as a fault would; the next use cures it."""
        assert self._queue is not None
        self._queue.break_off()

    def close(self) -> None:
        if self._wire is not None:
            with contextlib.suppress(TransportError):  # the host finds out by itself then
                self._wire.ask({"op": "leave"}, _LEAVE_S)
        self._give_up()
        if self._region is not None:
            self._region.close()
            self._region = None
        self._device.close()
