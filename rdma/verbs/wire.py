"""The bootstrap's wire: JSON frames over TCP, versioned, each authenticated with a shared key.

Nothing on it is secret but everything on it gives access to memory, so both sides prove that
they know the key before a word of the ring is described, and each frame carries a code over
its direction, number and content. It is not encrypted: whoever listens learns addresses and
remote keys, which are of no use without a queue pair on the same network.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import select
import socket
import struct
import time

from rdma.transport import TransportError, TransportLost

PROTOCOL = "blink-numba-ring"
VERSION = 2
KEY_VARIABLE = "BLINK_NUMBA_RDMA_KEY"
MIN_KEY_BYTES = 16

_LENGTH = struct.Struct("!I")
_MAX_FRAME = 1 << 20
_MAX_GREETING = 1 << 10  # before the peer has proved anything
_MAX_SAID = 300  # characters of a peer's message that are shown
_MAC_BYTES = 32
_SEND_S = 5.0  # for the peer to take a frame
_PROBE_IDLE_S, _PROBE_INTERVAL_S, _PROBES = 5, 2, 3  # a host that vanished is noticed after 11 s


class Refused(TransportError):
    """The peer refused, and said why.

    Attributes
    ----------
    cause : str
        One word: ``version``, ``key``, ``held``, ``fenced``, ``request``, ``host``.
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


def check_key(key: str | bytes | None) -> bytes:
    """The shared key as bytes; `TransportError` if it is missing or short."""
    raw = key.encode() if isinstance(key, str) else key
    if not raw or len(raw) < MIN_KEY_BYTES:
        raise TransportError(
            f"the shared key must have at least {MIN_KEY_BYTES} bytes: set {KEY_VARIABLE} to the same on "
            "both hosts, for instance to the output of `openssl rand -hex 32`"
        )
    return raw


class Wire:
    """One bootstrap connection after its handshake. Use `connect` or `accept`."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        self._session_key = b""
        self._sent = self._received = 0
        self._side = b""

    # --- the two ends of the handshake ---------------------------------------------------------

    @classmethod
    def connect(cls, host: str, port: int, key: bytes, deadline_s: float) -> Wire:
        """Connect to a ring's host and prove the key, each to the other.

        Raises
        ------
        Refused
            Another version, or another key.
        TransportLost
            Nobody there, or no answer within the deadline.
        """
        give_up = time.monotonic() + deadline_s
        try:
            peer = socket.create_connection((host, port), timeout=deadline_s)
        except (socket.gaierror, UnicodeError) as error:
            raise TransportLost(
                f"the host name {host!r} cannot be resolved ({error}): check it, or use an address"
            ) from None
        except OSError as error:
            raise TransportLost(
                f"no ring's host at {host}:{port} ({error}): is the engine running?"
            ) from None
        wire = cls(peer)
        try:
            _keep_alive(peer)
            wire._greet_as_client(key, give_up)
        except BaseException:
            wire.close()
            raise
        return wire

    @classmethod
    def accept(cls, peer: socket.socket, key: bytes, deadline_s: float) -> Wire:
        """The host's side of `connect`, on an accepted socket; closes it when that fails."""
        wire = cls(peer)
        try:
            _keep_alive(peer)
            wire._greet_as_host(key, time.monotonic() + deadline_s)
        except BaseException:
            wire.close()
            raise
        return wire

    def _greet_as_client(self, key: bytes, give_up: float) -> None:
        greeting = self._receive_plain(give_up)
        if greeting.get("protocol") != PROTOCOL:
            raise TransportError("who answers there is no blink-numba engine: check host and port")
        if greeting.get("version") != VERSION:
            raise Refused("version", _other_version(greeting.get("version")))
        nonce = secrets.token_hex(16)
        both = _bytes(f"{greeting.get('nonce')}:{nonce}")
        self._send_plain({"version": VERSION, "nonce": nonce, "proof": _proof(key, b"client", both)})
        answer = self._receive_plain(give_up)
        _raise_refusal(answer)
        if not _proves(answer, key, b"host", both):
            raise Refused("key", _wrong_key())
        self._authenticated(key, both, b"client")

    def _greet_as_host(self, key: bytes, give_up: float) -> None:
        nonce = secrets.token_hex(16)
        self._send_plain({"protocol": PROTOCOL, "version": VERSION, "nonce": nonce})
        hello = self._receive_plain(give_up)
        if hello.get("version") != VERSION:
            self._refuse_plain("version", _other_version(hello.get("version")))
        both = _bytes(f"{nonce}:{hello.get('nonce')}")
        if not _proves(hello, key, b"client", both):
            self._refuse_plain("key", _wrong_key())
        self._send_plain({"proof": _proof(key, b"host", both)})
        self._authenticated(key, both, b"host")

    def _refuse_plain(self, cause: str, message: str) -> None:
        self._send_plain({"refused": cause, "message": message})
        raise Refused(cause, message)

    def _authenticated(self, key: bytes, both: bytes, side: bytes) -> None:
        self._session_key = hmac.digest(key, b"session:" + both, hashlib.sha256)
        self._side = side

    # --- frames ----------------------------------------------------------------------------------

    def send(self, message: dict) -> None:
        """Send one authenticated frame."""
        payload = json.dumps(message).encode()
        code = self._code(self._side, self._sent, payload)
        self._sent += 1
        self._send_bytes(code + payload)

    def receive(self, deadline_s: float | None) -> dict:
        """Receive one authenticated frame; `TransportLost` if none comes or it is not the peer's."""
        give_up = None if deadline_s is None else time.monotonic() + deadline_s
        frame = self._receive_bytes(_MAX_FRAME, give_up)
        code, payload = frame[:_MAC_BYTES], frame[_MAC_BYTES:]
        other = b"host" if self._side == b"client" else b"client"
        if not hmac.compare_digest(code, self._code(other, self._received, payload)):
            raise TransportLost("a bootstrap frame was not authentic: connection dropped")
        self._received += 1
        return _parse(payload)

    def ask(self, message: dict, deadline_s: float) -> dict:
        """Send a request, return its answer; `Refused` if that is a refusal."""
        self.send(message)
        answer = self.receive(deadline_s)
        _raise_refusal(answer)
        return answer

    def ended(self) -> bool:
        """Whether the peer has closed the connection; looks, does not wait."""
        try:
            readable, _, _ = select.select([self._socket], [], [], 0.0)
            return bool(readable) and self._socket.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            return True

    def close(self) -> None:
        """Close the connection. Closing twice is harmless."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _code(self, side: bytes, number: int, payload: bytes) -> bytes:
        return hmac.digest(self._session_key, side + number.to_bytes(8, "big") + payload, hashlib.sha256)

    def _send_plain(self, message: dict) -> None:
        self._send_bytes(json.dumps(message).encode())

    def _receive_plain(self, give_up: float) -> dict:
        return _parse(self._receive_bytes(_MAX_GREETING, give_up))

    def _send_bytes(self, frame: bytes) -> None:
        try:
            self._socket.settimeout(_SEND_S)
            self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
        except OSError as error:
            raise TransportLost(f"the bootstrap connection is gone ({error})") from None

    def _receive_bytes(self, limit: int, give_up: float | None) -> bytes:
        (length,) = _LENGTH.unpack(self._receive_exactly(_LENGTH.size, give_up))
        if length > limit:
            raise TransportLost(f"a bootstrap frame of {length} bytes is too long: connection dropped")
        return self._receive_exactly(length, give_up)

    def _receive_exactly(self, count: int, give_up: float | None) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            if give_up is not None and time.monotonic() >= give_up:
                raise TransportLost("the peer of the bootstrap connection does not answer")
            try:
                self._socket.settimeout(None if give_up is None else max(give_up - time.monotonic(), 0.001))
                part = self._socket.recv(count - len(parts))
            except TimeoutError:
                continue
            except OSError as error:
                raise TransportLost(f"the bootstrap connection is gone ({error})") from None
            if not part:
                raise TransportLost("the peer has closed the bootstrap connection")
            parts += part
        return bytes(parts)


def _parse(payload: bytes) -> dict:
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        raise TransportLost("a bootstrap frame is no JSON: connection dropped") from None
    if not isinstance(message, dict):
        raise TransportLost("a bootstrap frame is no object: connection dropped")
    return message


def _raise_refusal(answer: dict) -> None:
    if "refused" in answer:
        raise Refused(str(answer["refused"]), _one_line(answer.get("message")))


def _one_line(said: object) -> str:
    """What a peer says, fit for a line of a log."""
    text = str(said)[:_MAX_SAID]
    return text if text.isprintable() else ascii(text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # JSON may hold what UTF-8 may not


def _proves(message: dict, key: bytes, side: bytes, both: bytes) -> bool:
    return hmac.compare_digest(_bytes(str(message.get("proof"))), _proof(key, side, both).encode())


def _proof(key: bytes, side: bytes, both: bytes) -> str:
    return hmac.new(key, side + b":" + both, hashlib.sha256).hexdigest()


def _other_version(version: object) -> str:
    return (
        f"one side speaks version {_one_line(version)} of the bootstrap, the other {VERSION}: "
        "install the same blink-numba on both hosts"
    )


def _wrong_key() -> str:
    return f"the shared keys differ: set {KEY_VARIABLE} to the same on both hosts"


def _keep_alive(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_IDLE_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_INTERVAL_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
