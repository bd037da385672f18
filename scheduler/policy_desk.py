"""The host's side of swapping policies: asking for one, and loading one that was not preloaded.

`ask_for` is what ``blink-numba policy set`` and the admin endpoint call, from any process that has
the ring. `PolicyDesk` sits in the engine's process and serves what `scheduler.swap` cannot: it
loads and compiles while the scheduler goes on, and parks it only to change the functions.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ring import layout as at
from ring.atomics import load_acquire, store_release
from ring.jit import njit
from ring.views import RingView
from scheduler import state as sc
from scheduler.policies import find
from scheduler.policy import Policy, PolicyError, pack_name, unpack_name

logger = logging.getLogger("blink_numba.policy")

LOOK_S = 0.001
PATIENCE_S = 0.05  # a look waits so long for a policy that is loaded: one compiled before is there at once
LOAD_DEADLINE_S = 120.0
PARK_DEADLINE_S = 120.0  # a step may take so long, and the scheduler parks between steps


class PolicyRefused(PolicyError):
    """The engine has no such policy, or cannot run it; its log says why."""


@njit
def _read(words, index):
    return load_acquire(words, index)


@njit
def _release(words, index, value):
    store_release(words, index, value)


def current(ring: RingView) -> str:
    """Name of the policy in force."""
    return unpack_name(ring.status[at.S_POLICY_NAME : at.S_POLICY_NAME + sc.NAME_WORDS])


def last_pause_ns(ring: RingView) -> int:
    """How long the scheduler stood still for the last policy that had to be loaded; 0 if none had."""
    return int(_read(ring.status, at.S_SWAP_PAUSE))


def ask_for(ring: RingView, name: str, *, deadline_s: float = 60.0) -> float:
    """Have the running scheduler swap to another policy, and wait until it has.

    One process at a time: several hold `ring.memory.RingMemory.exclusively` meanwhile.

    Parameters
    ----------
    name : str
        As `scheduler.policies.find` takes it, as the engine's process sees files and modules.
    deadline_s : float
        How long to wait.

    Returns
    -------
    float
        Seconds from the request to the swap.

    Raises
    ------
    PolicyError
        The engine has no such policy, or does not answer in time.
    """
    words = pack_name(name) if name.isascii() and 0 < len(name) <= 7 * sc.NAME_WORDS else None
    if words is None:
        raise PolicyError(
            f"policy name {name!r} must be 1 to {7 * sc.NAME_WORDS} ASCII characters: "
            "name a file by a shorter path, such as one that begins in the engine's folder"
        )
    command = ring.command
    number = int(command[at.C_POLICY]) + 1
    command[at.C_POLICY_NAME : at.C_POLICY_NAME + sc.NAME_WORDS] = words
    _release(command, at.C_POLICY, number)  # pairs with the acquire in scheduler.ending.watch
    began = time.monotonic()
    while time.monotonic() - began < deadline_s:
        if _read(ring.status, at.S_POLICY) >= number:
            return time.monotonic() - began
        if _read(command, at.C_REFUSED) >= number:
            raise PolicyRefused(f"the engine has no policy {name!r}, or cannot run it: its log says why")
        time.sleep(LOOK_S)
    raise PolicyError(f"no answer within {deadline_s:g} s: is the engine of this ring running?")


class Runner(Protocol):
    """What runs the scheduler, as far as the desk needs it.

    One that can also ``prepare(policy)`` (compile what `resume` will run, while the scheduler runs) and
    ``resume(policy)`` (put the policy in force in its state and run the loop again, with the
    policy's functions) can be given policies that were not preloaded.
    """

    def verdict(self) -> int | None:
        """The loop's last verdict once it has returned, None while it runs."""
        ...


class _Loader(threading.Thread):
    """Loads and compiles a policy while the scheduler runs and its watchdog looks.

    Attributes
    ----------
    policy, error : Policy or None, Exception or None
        What came of it, once the thread has ended.
    """

    def __init__(self, name: str, number: int, load: Callable[[str], Policy]) -> None:
        super().__init__(name="blink-numba-policy", daemon=True)
        self.policy_name, self.number, self._load = name, number, load
        self.policy: Policy | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.policy = self._load(self.policy_name)
        except Exception as error:
            self.error = error


class PolicyDesk:
    """Serves requests for policies that the running loop does not have.

    Parameters
    ----------
    ring : RingView
    runner : Runner
    policy : Policy
        The one in force at the start.
    load : callable, optional
        From a name to a policy; `scheduler.policies.find`.
    """

    def __init__(self, ring: RingView, runner: Runner, policy: Policy,
                 load: Callable[[str], Policy] = find) -> None:  # fmt: skip
        self._ring, self._runner, self._load = ring, runner, load
        self._served = int(ring.command[at.C_REFUSED])
        self._loader: _Loader | None = None
        self._announce(policy)

    def _announce(self, policy: Policy) -> None:
        """The scheduler does not run: its status words are the desk's."""
        words = pack_name(policy.name)
        self._ring.status[at.S_POLICY_NAME : at.S_POLICY_NAME + sc.NAME_WORDS] = words

    def look(self) -> str | None:
        """Serve a request, if one waits. The name of the policy that came into force, if one did.

        Loading and compiling go on beside the caller, over several looks.
        """
        if self._loader is None:
            self._loader = self._begin()
        if self._loader is None:
            return None
        self._loader.join(PATIENCE_S)
        if self._loader.is_alive():
            return None
        loader, self._loader = self._loader, None
        try:
            if loader.error is not None:
                raise loader.error
            assert loader.policy is not None
            pause_ns = self._swap(loader.policy, loader.number)
        except Exception as error:  # whatever a policy's file does, the engine goes on
            logger.error("policy %s: %s", loader.policy_name, error)
            _release(self._ring.command, at.C_REFUSED, loader.number)
            return None
        logger.info("policy %s in force; the scheduler stood for %.3f ms", loader.policy_name, pause_ns / 1e6)
        return loader.policy.name

    def _begin(self) -> _Loader | None:
        """A thread that loads the policy that is asked for, if one is."""
        number = int(_read(self._ring.command, at.C_POLICY))
        if number <= self._served or _read(self._ring.status, at.S_POLICY_WANTED) != number:
            return None
        self._served = number
        name = unpack_name(self._ring.command[at.C_POLICY_NAME : at.C_POLICY_NAME + sc.NAME_WORDS])
        loader = _Loader(name, number, self._make_ready)
        loader.start()
        return loader

    def _make_ready(self, name: str) -> Policy:
        prepare = getattr(self._runner, "prepare", None)
        if prepare is None:
            raise PolicyError("this backend swaps only among the policies it was started with")
        policy = self._load(name)
        prepare(policy)
        return policy

    def close(self) -> None:
        """Wait for a policy that is being loaded, so that nothing compiles while the process ends."""
        if self._loader is not None:
            self._loader.join(LOAD_DEADLINE_S)

    def _swap(self, policy: Policy, number: int) -> int:
        """Park the scheduler, change its functions, run it again; ns that it stood still."""
        command = self._ring.command
        _release(command, at.C_PARK, 1)
        give_up = time.monotonic() + PARK_DEADLINE_S
        while (verdict := self._runner.verdict()) is None:
            if time.monotonic() > give_up:
                _release(command, at.C_PARK, 0)
                raise PolicyError(f"the scheduler did not park within {PARK_DEADLINE_S:g} s")
            time.sleep(LOOK_S / 10)
        _release(command, at.C_PARK, 0)
        if verdict != sc.PARKED:
            raise PolicyError(f"the scheduler ended with verdict {verdict} before it could be parked")
        parked = time.monotonic_ns()
        self._announce(policy)
        _release(self._ring.status, at.S_POLICY, number)
        self._runner.resume(policy)  # type: ignore[attr-defined]  # it could prepare
        pause_ns = time.monotonic_ns() - parked
        _release(self._ring.status, at.S_SWAP_PAUSE, pause_ns)
        return pause_ns
