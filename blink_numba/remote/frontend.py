"""A front end alone: HTTP here, the engine's ring on another host."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rdma.port import FrontEndPort
from rdma.transport import TransportError, TransportLost

if TYPE_CHECKING:
    from blink_numba.frontend.settings import FrontEndSettings
    from rdma.verbs import VerbsTransport

RECONNECT_S = 1.5  # `/health` tells the truth within two seconds


def parse_address(text: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[IPV6]:PORT`` as (host, port); `ValueError` for anything else."""
    host, separator, number = text.rpartition(":")
    if not separator or not host or not number.isdigit() or not 0 < int(number) < 65536:
        raise ValueError(f"{text!r} must look like HOST:PORT, such as 10.0.0.1:7471")
    return host.removeprefix("[").removesuffix("]"), int(number)


class VerbsConnector:
    """Reaches a ring on another host (`blink_numba.frontend.connector.Connector`).

    Parameters
    ----------
    host, port : str, int
        Where the engine admits front ends.
    front_end : int
        Which of the ring's places to take; a predecessor's is taken over once it is gone.
    key : str or bytes, optional
        As `rdma.verbs.VerbsTransport` has it.
    device : str, optional
        As in `rdma.verbs.VerbsTransport`.
    reconnect_s : float
        How long a fault may last before every request in service fails.
    """

    def __init__(
        self, host: str, port: int, front_end: int = 0, *, key: str | bytes | None = None,
        device: str | None = None, reconnect_s: float = RECONNECT_S,
    ) -> None:  # fmt: skip
        self._host, self._port, self._front_end = host, port, front_end
        self._key, self._device, self._reconnect_s = key, device, reconnect_s

    def _transport(self) -> VerbsTransport:
        from rdma.verbs import VerbsTransport

        return VerbsTransport(
            self._host, self._port, self._front_end, key=self._key, takeover=True, device=self._device,
            deadline_s=self._reconnect_s,
        )  # fmt: skip

    def connect(self) -> FrontEndPort:
        """A port; `AttachError` or `TransportError` while there is no ring."""
        transport = self._transport()
        try:
            port = FrontEndPort(transport, self._front_end, takeover=True, deadline_s=self._reconnect_s)
            port.warm_up()
        except BaseException:
            transport.close()
            raise
        return port

    def model(self) -> str:
        """Name or path of the model behind the ring, as its host tells it; asked by attaching."""
        with self._transport() as transport:
            name = transport.about.get("model")
        if not name:
            raise TransportError("the engine's host does not tell its model: name it with --model")
        return str(name)

    def engine_alive(self) -> bool:
        """Unknown from here: the heartbeat tells."""
        return True

    def replaced(self) -> bool:
        """Never without being told: a ring made anew fences its old front ends off."""
        return False


def run_front_end(
    settings: FrontEndSettings,
    connector: VerbsConnector,
    on_ready: Callable[[int], None] = lambda port: None,
) -> int:
    """Serve HTTP until SIGTERM or SIGINT, finishing what is in service; the exit status.

    Parameters
    ----------
    settings : FrontEndSettings
        An empty `model` is asked of the engine's host.
    connector : VerbsConnector
    on_ready : callable
        Takes the port that is listened on.

    Raises
    ------
    TransportError
        The engine's host refuses, such as for another key; or it cannot be reached, and no model
        was named. With a model the front end begins without an engine, and waits for one.
    """
    from blink_numba.frontend.app import run
    from blink_numba.vocabularies import load_tokenizer

    with _sigterm_exits():
        try:
            model = connector.model()
        except TransportLost:
            if not settings.model:
                raise
        else:
            model = settings.model or model
            settings = replace(settings, model=model, served_names=settings.served_names or (model,))
        tokenizer = load_tokenizer(settings.model)
        return run(settings, tokenizer, frozenset(tokenizer.eos_ids), connector, on_ready)


@contextmanager
def _sigterm_exits() -> Iterator[None]:
    """SIGTERM ends the process with status 0: before the server takes signals, and as it gives them back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
