"""Settings of one front-end process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class FrontEndSettings:
    """What a front end needs to know; it learns the rest from the ring.

    Attributes
    ----------
    model : str
        Name or path; decides the tokenizer.
    served_names : tuple of str
        Names that requests may ask for; the first is the one answers carry.
    ring : str
        Name of the ring; empty where it is not in this machine's memory.
    front_end : int
        Which of the ring's front ends this one is.
    api_keys : tuple of str
        Bearer tokens that are let in; none: everybody is.
    admin_api_key : str or None
        The bearer token of `blink_numba.frontend.admin`, which is off without one.
    max_body_bytes, max_header_bytes : int
    header_timeout_s, body_timeout_s, write_timeout_s, keep_alive_s : float
        How long a client may take to send its header or body, to read what is written to it,
        and to begin another request on its connection.
    queue_timeout_s : float
        How long a request waits for room in the ring before it gets 503.
    request_timeout_s : float or None
        Deadline of every request.
    heartbeat_timeout_s : float
        A scheduler that is silent for so long is not healthy.
    engine_grace_s : float
        How long requests outlive an engine that died, in case another one adopts the ring.
    stall_timeout_s : float
        How long requests outlive the silence of an engine that lives.
    first_engine_s : float
        How long the start waits for an engine before it listens without one.
    max_choices : int
        Most answers (prompts × n) of one HTTP request.
    max_requests : int
        HTTP requests in service at once; more get 503.
    access_log : bool
    cpus : tuple of int
        Cores to run on; none: all.
    listen_fd : int or None
        An inherited listening socket instead of `host` and `port`.
    kv_blocks : int
        KV blocks of the engine; 0 where it is not known.
    """

    model: str
    served_names: tuple[str, ...]
    ring: str
    front_end: int = 0
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    admin_api_key: str | None = field(default=None, repr=False)
    max_body_bytes: int = 4 << 20
    max_header_bytes: int = 64 << 10
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    keep_alive_s: float = 30.0
    queue_timeout_s: float = 5.0
    request_timeout_s: float | None = None
    drain_timeout_s: float = 30.0
    heartbeat_timeout_s: float = 1.5
    engine_grace_s: float = 20.0
    stall_timeout_s: float = 60.0
    first_engine_s: float = 30.0
    max_choices: int = 128
    max_requests: int = 4096
    access_log: bool = True
    log_level: str = "info"
    cpus: tuple[int, ...] = ()
    listen_fd: int | None = None
    kv_blocks: int = 0

    def __post_init__(self) -> None:
        keys = (*self.api_keys, *(() if self.admin_api_key is None else (self.admin_api_key,)))
        if not all(key.strip() for key in keys):
            raise ValueError("an API key must not be empty: leave it out, or give it a value")
        if self.admin_api_key in self.api_keys:
            raise ValueError("the admin API key must differ from every API key")

    def to_json(self) -> str:
        """For the front end's process; holds the keys, so it travels by pipe."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> FrontEndSettings:
        """Inverse of `to_json`."""
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in json.loads(text).items()
        }
        return cls(**given)
