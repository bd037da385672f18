"""``/admin/policy``: which scheduling policy is in force, and swapping it.

Only loaded where the setting ``admin_api_key`` is given. A policy is code that runs in the engine: a
client chooses among what is there already, and has no file or module loaded. That takes a user of
the engine's host, and ``blink-numba policy set``.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

from pydantic import Field, field_validator

from blink_numba.frontend.errors import ApiError, invalid
from blink_numba.frontend.exchange import Exchange
from blink_numba.frontend.link import EngineLink
from blink_numba.frontend.schema import Body
from blink_numba.frontend.settings import FrontEndSettings
from ring import layout as at
from ring.memory import RingError, RingMemory
from ring.views import RingView
from scheduler.policies import SHIPPED
from scheduler.policy import PolicyError
from scheduler.policy_desk import PolicyRefused, ask_for, current, last_pause_ns
from scheduler.state import NAME_WORDS

SWAP_S = 60.0  # as `blink-numba policy set` waits; a kernel may have to be compiled
PAUSE_S = 2.0  # a pause is told once the scheduler runs again, right after the swap
LOOK_S = 0.001
_OWN_NAME = rf"^[ -9;-~]{{1,{7 * NAME_WORDS}}}$"  # ASCII without the colon that leads into a file or module
REMEDY = (
    f"over HTTP a policy is chosen by its own name, if it ships ({', '.join(SHIPPED)}) or the engine was "
    "started with it; set one from a file or module on the engine's host: blink-numba policy set NAME"
)


class PolicyRequest(Body):
    """Body of ``POST /admin/policy``."""

    policy: str = Field(examples=list(SHIPPED), json_schema_extra={"pattern": _OWN_NAME})

    @field_validator("policy")
    @classmethod
    def _its_own_name(cls, name: str) -> str:
        if not re.fullmatch(_OWN_NAME, name):
            raise ValueError(f"{name!r} is no policy's own name: {REMEDY}")
        return name


class Admin:
    """Handler of ``/admin/policy``.

    Parameters
    ----------
    settings : FrontEndSettings
        With an `admin_api_key`.
    link : EngineLink
        Tells whether there is an engine.
    """

    def __init__(self, settings: FrontEndSettings, link: EngineLink) -> None:
        assert settings.admin_api_key is not None
        self._keys = [settings.admin_api_key.encode()]
        self._ring, self._link = settings.ring, link
        self._turn = asyncio.Lock()

    async def policy(self, exchange: Exchange) -> None:
        """GET and POST /admin/policy"""
        # here, not by the path: whatever the router takes for this path needs the key
        exchange.authorize(self._keys, "admin API key")
        if not self._ring:
            raise ApiError(
                501,
                "this front end reaches its ring over RDMA, where policies are not swapped: use blink-numba "
                "policy on the engine's host, or a front end there",
            )
        if exchange.scope["method"] == "POST":
            await self._swap(exchange)
        else:
            self._check_engine()
            await exchange.respond_json(await asyncio.to_thread(in_force, self._ring))

    async def _swap(self, exchange: Exchange) -> None:
        body = await exchange.parse(PolicyRequest)
        self._check_engine()
        if self._turn.locked():  # no line of waiting threads: they are few, and tokenize long texts too
            raise ApiError(409, "another swap is under way: ask again when it is done", code="swap_under_way")
        async with self._turn:
            swapped = await asyncio.to_thread(swap, self._ring, body.policy, SWAP_S)
        exchange.notes |= swapped
        await exchange.respond_json(swapped)

    def _check_engine(self) -> None:
        if not self._link.health.ok:
            raise _no_engine(self._link.health.reason)


def in_force(ring: str) -> dict[str, Any]:
    """The policy in force, and how long the scheduler stood still for the last one that was loaded.

    Raises
    ------
    ApiError
        503 without a ring.
    """
    with _attach(ring) as memory:
        return {"policy": current(memory.view), "last_pause_s": last_pause_ns(memory.view) / 1e9}


def swap(ring: str, name: str, deadline_s: float) -> dict[str, Any]:
    """Have the engine of a ring swap its policy; blocks until it has.

    Parameters
    ----------
    ring, name : str
        Of the ring; of the policy, as `PolicyRequest` takes it.
    deadline_s : float
        How long to wait for the engine, and for commands of others before.

    Returns
    -------
    dict
        The policy in force, the seconds until it was, and for how many of them the scheduler stood
        still: 0 where the policy was preloaded.

    Raises
    ------
    ApiError
        400 for a policy that the engine does not know; 409 for one that it cannot take, or while another
        process gives commands; 503 without a ring; 504 past the deadline.
    """
    give_up = time.monotonic() + deadline_s
    with _attach(ring) as memory:
        view = memory.view
        try:
            with memory.exclusively(deadline_s):
                before = last_pause_ns(view)
                seconds = ask_for(view, name, deadline_s=max(give_up - time.monotonic(), 0.0))
                pause_ns = _pause_ns(view, before)
                return {"policy": current(view), "in_force_after_s": seconds, "pause_s": pause_ns / 1e9}
        except RingError as error:
            raise ApiError(409, str(error), code="swap_under_way") from None
        except FileNotFoundError:
            raise _no_engine("its ring was removed") from None
        except PolicyRefused as error:
            if name in SHIPPED:
                raise ApiError(409, str(error), param="policy", code="policy_refused") from None
            raise invalid("policy", f"{error}; {REMEDY}", "unknown_policy") from None
        except PolicyError as error:
            raise ApiError(504, str(error), code="swap_timeout") from None


def _attach(ring: str) -> RingMemory:
    try:
        return RingMemory.attach(ring)
    except RingError as error:
        raise _no_engine(str(error)) from None


def _pause_ns(view: RingView, before: int) -> int:
    """How long the scheduler stood still for the swap just made; waits until that is told.

    `before` is what was told of the last policy that was loaded.
    """
    if view.status[at.S_POLICY_WANTED] != view.status[at.S_POLICY]:
        return 0  # a preset: nothing was loaded
    give_up = time.monotonic() + PAUSE_S
    while (pause_ns := last_pause_ns(view)) == before and time.monotonic() < give_up:
        time.sleep(LOOK_S)
    return pause_ns


def _no_engine(reason: str) -> ApiError:
    return ApiError(503, f"no engine: {reason}", code="engine_unavailable", retry_after_s=2)
