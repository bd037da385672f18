"""Policies for an engine: one of its user's is tried out before it is put in force."""

from __future__ import annotations

from scheduler.policies import SHIPPED, find
from scheduler.policy import Policy


def load_policy(name: str) -> Policy:
    """A policy that an engine may be given.

    Parameters
    ----------
    name : str
        As `scheduler.policies.find` takes it. What ships is tested with the package, and costs nothing
        here; another's is tried out in simulation, in about half a second once the simulator is compiled.

    Raises
    ------
    PolicyNotFound
        There is none of that name.
    PolicyError
        It cannot be loaded, does not compile, divides by zero or reads beside an array.
    """
    chosen = find(name)
    if name not in SHIPPED:
        from blink_numba.lab.check import try_out  # only now: a server with a shipped policy needs no lab

        try_out(chosen)
    return chosen
