"""The connection's side of patience: slow senders, slow readers, oversized headers.

uvicorn has no time limit for a header or for a client that stops reading, so its protocol
class is extended by both; everything else stays as it is.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

if TYPE_CHECKING:
    from blink_numba.frontend.settings import FrontEndSettings


class GuardedProtocol(HttpToolsProtocol):
    """One connection with limits; made by `guarded`.

    A header must be complete within `header_timeout_s` of its first byte (or of the
    connection), a body within `body_timeout_s` of its header, and what was written must be
    read within `write_timeout_s`; a client that does not keep up is cut off.
    """

    settings: FrontEndSettings

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._receiving: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._in_header = True
        self._header_bytes = 0
        self._arm(self.settings.header_timeout_s, 408, "the request's header took too long")

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._stalled is not None:
            self._stalled.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_header:
            data = without_upgrade(data)
            self._header_bytes += len(data)
            if self._receiving is None:  # the first bytes after a finished request
                self._arm(self.settings.header_timeout_s, 408, "the request's header took too long")
        super().data_received(data)
        # A body may follow in the same bytes: only what is still header after parsing is too long.
        if self._in_header and self._header_bytes > self.settings.max_header_bytes:
            self._refuse(431, f"the request's header exceeds {self.settings.max_header_bytes} bytes")

    def on_headers_complete(self) -> None:
        self._in_header = False
        self._arm(self.settings.body_timeout_s, 408, "the request's body took too long")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._disarm()
        self._in_header, self._header_bytes = True, 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.settings.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _arm(self, seconds: float, status: int, message: str) -> None:
        self._disarm()
        self._receiving = self.loop.call_later(seconds, self._refuse, status, message)

    def _disarm(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _refuse(self, status: int, message: str) -> None:
        """Answer without the application, and close."""
        if self.transport.is_closing():
            return
        answering = (
            self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        )
        if not answering:
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
            body = json.dumps({"error": error}).encode()
            self.transport.write(
                STATUS_LINE[status] + b"content-type: application/json\r\nconnection: close\r\n"
                b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
            )
        self.transport.close()


_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)


def without_upgrade(data: bytes) -> bytes:
    """Bytes that begin with a header, which asks for no other protocol any more.

    Some HTTP clients ask for HTTP/2 on every first request (``Upgrade: h2c``), and a server may go on
    with HTTP/1.1 (RFC 9110, 7.8). The parser would stop at the end of the header, and lose the body.
    """
    if b"pgrade" not in data and b"PGRADE" not in data:
        return data
    header, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", header) + end + rest


def guarded(settings: FrontEndSettings) -> type[GuardedProtocol]:
    """The protocol class for these settings, as uvicorn's ``http`` option takes it."""
    members: dict[str, Any] = {"settings": settings}
    return type("Guarded", (GuardedProtocol,), members)
