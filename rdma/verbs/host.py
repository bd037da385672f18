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
from dataclasses import dataclass

from rdma.fencing import signed_by_session
from rdma.staging import Share
from rdma.transport import TransportError, TransportLost
from rdma.verbs.grants import Grant, writable_ranges
from rdma.verbs.provider import Device, QueueAddress, QueuePair, Region, open_device
from rdma.verbs.rings import HostedRing, MappedRing
from rdma.verbs.welcome import Welcome
from rdma.verbs.wire import Refused, Wire, check_key
from ring import layout as at
from ring.layout import RING_VERSION
from ring.memory import RingMemory

logger = logging.getLogger("blink_numba.rdma")

GRACE_S = 5.0
HANDSHAKE_S = 5.0
MAX_CONNECTIONS = 64
_LOOK_S = 0.2


def bind_listener(host: str, port: int) -> socket.socket:
    """A TCP socket at `host`:`port` that does not listen yet; `TransportError` with the remedy."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise TransportError(f"cannot listen on {host}:{port} ({error}): choose another address") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise TransportError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another address or port"
        ) from None
    return listener


class _Session:
    """Everything one connected front end holds on this host."""

    def __init__(
        self, wire: Wire, device: Device, ring: HostedRing, front_end: int, number: int, depth: int
    ) -> None:
        self.wire, self.front_end, self.number = wire, front_end, number
        self._closed = False
        self.grants: list[Grant] = []
        self.regions: list[Region] = []
        with contextlib.ExitStack() as held:  # what was made so far goes again if the rest fails
            held.callback(device.close)
            ranges = [(0, ring.map.words, False)]
            ranges += [(*piece, True) for piece in writable_ranges(Share(ring.map, front_end))]
            for start, words, write in ranges:
                region, address = ring.register(device, start, words, write)
                held.callback(region.close)
                self.regions.append(region)
                self.grants.append(Grant(start, words, address, region.rkey, write))
            self.queue: QueuePair = device.queue_pair(depth)
            held.callback(self.queue.close)
            self._held = held.pop_all()

    def close(self) -> None:
        """Destroy queue pair, then regions: no word of this front end lands from here on."""
        if self._closed:
            return
        self._closed = True
        self._held.close()


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
    listener : socket, optional
        A bound one (`bind_listener`), instead of `host` and `port`; closed with the host.

    Raises
    ------
    TransportError, VerbsUnavailable
        The address or the device cannot be had; with the remedy.
    """

    def __init__(
        self, ring: RingMemory | HostedRing, key: str | bytes | None, *, host: str = "0.0.0.0", port: int = 0,
        about: dict | None = None, device: str | None = None, gid_index: int | None = None,
        provider: str | None = None, grace_s: float = GRACE_S, depth: int = 64,
        listener: socket.socket | None = None,
    ) -> None:  # fmt: skip
        self._key = check_key(key)
        self._ring: HostedRing = MappedRing(ring) if isinstance(ring, RingMemory) else ring
        self._about, self._grace_s, self._depth = about or {}, grace_s, depth
        self._open: Callable[[], Device] = lambda: open_device(device, gid_index=gid_index, provider=provider)
        self._open().close()  # no device is an error now, not at the first front end
        self._lock = threading.Lock()
        self._places = [_Place(left_at=time.monotonic()) for _ in range(self._ring.map.geometry.front_ends)]
        self._life = secrets.randbits(61) + 1  # so that a front end knows one host from the next
        self._connections: dict[socket.socket, bool] = {}  # oldest first; whether it is a session's
        self._closing = threading.Event()
        self._listener = listener or bind_listener(host, port)
        try:
            self._listener.listen(socket.SOMAXCONN)
            self._listener.settimeout(_LOOK_S)
        except OSError as error:  # two sockets may be bound to a port while neither listens
            self._listener.close()
            raise TransportError(f"cannot listen on {host}:{port} ({error.strerror})") from None
        self.port: int = self._listener.getsockname()[1]
        self._threads = [
            threading.Thread(target=self._accept, name="ring-host", daemon=True),
            threading.Thread(target=self._bury, name="ring-host-watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # --- connections -----------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                peer, (name, number, *_) = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:  # the listener was closed, or descriptors ran out
                if not self._closing.wait(_LOOK_S):
                    logger.warning("no front end can be admitted at the moment: %s", error)
                continue
            address = f"{name}:{number}"
            with self._lock:
                self._make_room()
                self._connections[peer] = False
            try:
                threading.Thread(target=self._serve, args=(peer, address), daemon=True).start()
            except RuntimeError as error:  # no more threads
                logger.warning("front end at %s not admitted: %s", address, error)
                self._forget(peer)

    def _make_room(self) -> None:
        """Hang up on who has been longest about to prove the key: strangers keep nobody out."""
        waiting = [peer for peer, admitted in self._connections.items() if not admitted]
        if len(waiting) >= MAX_CONNECTIONS:
            with contextlib.suppress(OSError):
                waiting[0].shutdown(socket.SHUT_RDWR)  # its thread closes it
            self._connections.pop(waiting[0])

    def _forget(self, peer: socket.socket) -> None:
        with self._lock:
            self._connections.pop(peer, None)
        peer.close()

    def _serve(self, peer: socket.socket, address: str) -> None:
        session: _Session | None = None
        wire: Wire | None = None
        try:
            wire = Wire.accept(peer, self._key, HANDSHAKE_S)
            session = self._admit(wire)
            with self._lock:
                self._connections[peer] = True
            while not self._closing.is_set():
                request = wire.receive(None)
                if request.get("op") == "leave":
                    self._leave(session)  # before the answer: whoever comes next finds the place free
                    wire.send({})
                    return
                self._answer(wire, session, request)
        except Refused as refusal:
            logger.warning("front end at %s refused: %s", address, refusal)
            _tell(wire, refusal.cause, refusal)
        except TransportLost as error:
            logger.info("front end at %s: %s", address, error)
        except TransportError as error:  # of this host: its device, its memory
            logger.error("front end at %s cannot be served: %s", address, error)
            _tell(wire, "host", error)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            logger.warning("front end at %s sent nonsense: %r", address, error)
            _tell(wire, "request", error)
        finally:
            if session is not None:
                self._leave(session)
            self._forget(peer)

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
        place, signed = self._places[front_end], self._signed_by_session(front_end)
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
        queue, grants = session.queue.address, tuple(session.grants)
        return Welcome(session.number, self._life, queue, grants, self._ring.map, self._about).to_json()

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
                    if place.session is not None or not self._signed_by_session(front_end):
                        continue
                    if time.monotonic() >= place.left_at + self._grace_s and not self._fenced(front_end):
                        logger.warning("front end %d did not come back: its requests are ended", front_end)
                        self._ring.declare_dead(front_end)

    def _signed_by_session(self, front_end: int) -> int:
        return signed_by_session(lambda: self._ring.line(front_end))

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


def _tell(wire: Wire | None, cause: str, error: Exception) -> None:
    """Say to a front end why it is not served, if it listens."""
    if wire is not None:
        with contextlib.suppress(TransportError):
            wire.send({"refused": cause, "message": str(error)})
