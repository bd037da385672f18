"""A front end on a thread of the test, for tests that need no process of its own."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from typing import Any

import uvicorn

from blink_numba.frontend.app import build, uvicorn_config
from blink_numba.frontend.connector import Connector
from blink_numba.frontend.settings import FrontEndSettings
from blink_numba.vocabularies import load_tokenizer

_numbers = itertools.count()
START_S = 120.0
ADMIN_KEY = "administrators only"


def ring_name() -> str:
    """A name that no other test uses."""
    return f"test-{os.getpid()}-{next(_numbers)}"


class Running:
    """A front end serving on a free port. A context manager.

    Attributes
    ----------
    url : str
        Without ``/v1``.
    service : blink_numba.frontend.service.Service
    """

    def __init__(self, ring: str, *, connector: Connector | None = None, **settings: Any) -> None:
        options: dict[str, Any] = {
            "access_log": False,
            "log_level": "warning",
            "drain_timeout_s": 5.0,
            **settings,
        }
        self.settings = FrontEndSettings("tiny", ("tiny",), ring, **options)
        tokenizer = load_tokenizer("tiny")
        self.app, self.service = build(self.settings, tokenizer, frozenset(tokenizer.eos_ids), connector)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(uvicorn_config(self.app, self.settings))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        give_up = time.monotonic() + START_S
        while not self._server.started:
            assert self._thread.is_alive(), "the server ended at its start"
            assert time.monotonic() < give_up, "the server did not start"
            time.sleep(0.01)
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join(20.0)
        assert not self._thread.is_alive(), "the server did not stop"
        self._socket.close()


def wait_until(condition, seconds: float = 10.0) -> bool:
    """Whether `condition` came true within `seconds`."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= give_up:
            return False
        time.sleep(0.005)
    return True
