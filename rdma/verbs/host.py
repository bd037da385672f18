"""The ring's side of verbs: it admits front ends, registers memory for them, then looks on.

One TCP connection is one *session*: a protection domain, the grants of one front end, a queue
pair. When the connection ends, the queue pair goes with it, which fences the front end off in
hardware; the session may be taken up again for `grace_s` seconds, then the front end is
declared dead. After an engine's restart the sessions are found in the ring itself: a front
end on another host signs its line with its session's number instead of a process id.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from rdma.staging import Share
from rdma.transport import TransportError
from rdma.verbs.grants import Grant, writable_ranges
from rdma.verbs.provider import Device, QueueAddress, QueuePair, Region, open_device
from rdma.verbs.rings import HostedRing, MappedRing
from rdma.verbs.wire import Refused, Wire, check_key
from ring import layout as at
from ring.layout import RING_VERSION
from ring.memory import RingMemory

logger = logging.getLogger("blink_numba.rdma")

GRACE_S = 5.0
HANDSHAKE_S = 5.0
MAX_CONNECTIONS = 64
_LOOK_S = 0.2


class _Session:
    """Everything one connected front end holds on this host."""

    def __init__(
        self, wire: Wire, device: Device, ring: HostedRing, front_end: int, number: int, depth: int
    ) -> None:
        self.wire, self.front_end, self.number = wire, front_end, number
        self._device, self._closed = device, False
        self.queue: QueuePair = device.queue_pair(depth)
        ranges = [(0, ring.map.words, False)]
        ranges += [(*piece, True) for piece in writable_ranges(Share(ring.map, front_end))]
        self._regions: list[Region] = []
        self.grants: list[Grant] = []
        for start, words, write in ranges:
            region, address = ring.register(device, start, words, write)
            self._regions.append(region)
            self.grants.append(Grant(start, words, address, region.rkey, write))

    def close(self) -> None:
        """Destroy queue pair and regions: no word of this front end lands from here on."""
        if self._closed:
            return
        self._closed = True
        self.queue.close()
        for region in self._regions:
            region.close()
        self._device.close()


@dataclass
class _Place:
    """One front end's place, as this host knows it."""

    session: _Session | None = None
    left_at: float = 0.0  # when the last session's connection ended


class RingHost:
    """Serves one ring to front ends on other hosts. A context manager.

    Parameters
    ----------
    ring : RingMemory or HostedRing
        Must stay mapped until `close`.
    key : str or bytes
        Shared with the front ends; at least 16 bytes.
    host, port : str, int
        Where to listen; port 0 takes a free one (see `port`).
    about : dict, optional
        Told to each front end, such as the model's name.
    device, gid_index, provider : optional
        As in `rdma.verbs.provider.open_device`.
    grace_s : float
        How long a session may be taken up again after its connection ended.
    """

    def __init__(
        self, ring: RingMemory | HostedRing, key: str | bytes | None, *, host: str = "0.0.0.0", port: int = 0,
        about: dict | None = None, device: str | None = None, gid_index: int | None = None,
        provider: str | None = None, grace_s: float = GRACE_S, depth: int = 64,
    ) -> None:  # fmt: skip
        self._key = check_key(key)
        self._ring: HostedRing = MappedRing(ring) if isinstance(ring, RingMemory) else ring
        self._about, self._grace_s, self._depth = about or {}, grace_s, depth
        self._open: Callable[[], Device] = lambda: open_device(device, gid_index=gid_index, provider=provider)
        self._open().close()  # no device is an error now, not at the first front end
        self._lock = threading.Lock()
        self._places = [_Place(left_at=time.monotonic()) for _ in range(self._ring.map.geometry.front_ends)]
        self._connections: set[socket.socket] = set()
        self._closing = threading.Event()
        try:
            self._listener = socket.create_server((host, port), backlog=16)
        except OSError as error:
            raise TransportError(
                f"cannot listen on {host}:{port} ({error.strerror}): choose another"
            ) from None
        self.port: int = self._listener.getsockname()[1]
        self._threads = [
            threading.Thread(target=self._accept, name="ring-host", daemon=True),
            threading.Thread(target=self._bury, name="ring-host-watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # --- connections -----------------------------------------------------------------------------

    def _accept(self) -> None:
        self._listener.settimeout(_LOOK_S)
        while not self._closing.is_set():
            try:
                peer, address = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            with self._lock:
                if len(self._connections) >= MAX_CONNECTIONS:
                    peer.close()
                    continue
                self._connections.add(peer)
            threading.Thread(target=self._serve, args=(peer, address), daemon=True).start()

    def _serve(self, peer: socket.socket, address: object) -> None:
        session: _Session | None = None
        wire: Wire | None = None
        try:
            wire = Wire.accept(peer, self._key, HANDSHAKE_S)
            session = self._admit(wire)
            while not self._closing.is_set():
                request = wire.receive(None)
                if request.get("op") == "leave":
                    self._leave(session)  # before the answer: whoever comes next finds the place free
                    wire.send({})
                    return
                self._answer(wire, session, request)
        except Refused as refusal:
            logger.warning("front end at %s refused: %s", address, refusal)
            if wire is not None:
                with contextlib.suppress(TransportError):
                    wire.send({"refused": refusal.cause, "message": str(refusal)})
        except TransportError as error:
            logger.info("front end at %s: %s", address, error)
        except (ValueError, TypeError, KeyError) as error:
            logger.warning("front end at %s sent nonsense: %s", address, error)
        finally:
            if session is not None:
                self._leave(session)
            with self._lock:
                self._connections.discard(peer)
            peer.close()

    def _admit(self, wire: Wire) -> _Session:
        hello = wire.receive(HANDSHAKE_S)
        front_end, resume = int(hello.get("front_end", -1)), int(hello.get("session", 0))
        if hello.get("op") != "attach" or not 0 <= front_end < len(self._places):
            raise Refused(
                "request", f"front end {front_end} does not exist: this ring has 0 to {len(self._places) - 1}"
            )
        if int(hello.get("ring_version", -1)) != RING_VERSION:
            raise Refused(
                "version",
                f"the ring has layout {RING_VERSION}, the front end speaks {hello.get('ring_version')}: "
                "install the same blink-numba on both hosts",
            )
        with self._lock:
            self._check_place(front_end, resume, int(hello.get("epoch", 0)), bool(hello.get("takeover")))
            number = resume or secrets.randbits(61) + 1
            session = _Session(wire, self._open(), self._ring, front_end, number, self._depth)
            self._places[front_end].session = session
        try:
            session.queue.connect(QueueAddress.from_json(hello.get("queue") or {}))
            wire.send(self._describe(session))
        except BaseException:
            self._leave(session)
            raise
        return session

    def _check_place(self, front_end: int, resume: int, epoch: int, takeover: bool) -> None:
        place, line = self._places[front_end], self._ring.line(front_end)
        signed = int(line[at.P_STARTED]) if int(line[at.P_PID]) == 0 else 0
        if resume:
            if epoch != self._ring.map.epoch:
                raise Refused("fenced", "the ring was made anew: attach anew")
            if signed not in (0, resume) or (signed and self._fenced(front_end)):
                raise Refused("fenced", f"front end {front_end} was declared dead or replaced: attach anew")
        if place.session is not None and place.session.number == resume:
            place.session.close()  # its connection is lost, we only have not noticed yet
            place.session = None
        if place.session is not None:
            raise Refused("held", f"front end {front_end} is connected: stop it, or take another front end")
        if resume:
            return
        lingering = (
            signed and not self._fenced(front_end) and time.monotonic() < place.left_at + self._grace_s
        )
        if lingering and not takeover:
            raise Refused(
                "held",
                f"front end {front_end} lost its connection a moment ago and may come back: wait "
                f"{self._grace_s:g} s, or attach with takeover=True",
            )

    def _describe(self, session: _Session) -> dict:
        ring = self._ring.map
        return {
            "session": session.number,
            "queue": session.queue.address.to_json(),
            "grants": [grant.to_json() for grant in session.grants],
            "geometry": asdict(ring.geometry),
            "epoch": ring.epoch,
            "max_model_len": ring.max_model_len,
            "vocab_size": ring.vocab_size,
            "about": self._about,
        }

    def _answer(self, wire: Wire, session: _Session, request: dict) -> None:
        operation, front_end = request.get("op"), session.front_end
        if operation == "holder_gone":
            gone = self._holder_gone(front_end, int(request["pid"]), int(request["started"]))
            wire.send({"gone": gone})
        elif operation == "declare_dead":
            line = self._ring.line(front_end)
            if not self._holder_gone(front_end, int(line[at.P_PID]), int(line[at.P_STARTED])):
                raise Refused("held", f"the holder of front end {front_end} is not known to have ended")
            wire.send({"generation": self._ring.declare_dead(front_end)})
        else:
            raise Refused("request", f"the bootstrap has no operation {operation!r}")

    def _holder_gone(self, front_end: int, pid: int, started: int) -> bool:
        if pid:  # a front end of this host
            return self._ring.local_holder_gone(front_end)
        session = self._places[front_end].session
        return session is None or session.number != started

    # --- ends --------------------------------------------------------------------------------------

    def _leave(self, session: _Session) -> None:
        with self._lock:
            session.close()
            place = self._places[session.front_end]
            if place.session is session:
                place.session = None
                place.left_at = time.monotonic()

    def _bury(self) -> None:
        """Declare dead whoever left without closing and did not come back."""
        while not self._closing.wait(_LOOK_S):
            with self._lock:
                for front_end, place in enumerate(self._places):
                    line = self._ring.line(front_end)
                    if place.session is not None or int(line[at.P_PID]) or not int(line[at.P_STARTED]):
                        continue
                    if time.monotonic() >= place.left_at + self._grace_s and not self._fenced(front_end):
                        logger.warning("front end %d did not come back: its requests are ended", front_end)
                        self._ring.declare_dead(front_end)

    def _fenced(self, front_end: int) -> bool:
        return self._ring.fence(front_end) != int(self._ring.line(front_end)[at.P_GENERATION])

    def sessions(self) -> list[int]:
        """Front ends that are connected."""
        with self._lock:
            return [k for k, place in enumerate(self._places) if place.session is not None]

    def drop(self, front_end: int) -> None:
        """End a front end's queue pair and connection, as a fault of the network would."""
        with self._lock:
            session = self._places[front_end].session
            if session is not None:
                session.close()
                session.wire.close()

    def close(self) -> None:
        """Drop all connections and stop listening."""
        self._closing.set()
        self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for peer in connections:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5.0)
        give_up = time.monotonic() + 5.0
        while self.sessions() and time.monotonic() < give_up:
            time.sleep(0.01)

    def __enter__(self) -> RingHost:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
