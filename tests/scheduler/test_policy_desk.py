"""The host's side of a swap: a policy is loaded beside the watchdog, and refused without harm."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ring import layout as at
from ring.layout import RingGeometry
from ring.views import format_ring, host_view
from scheduler import state as sc
from scheduler.policy import Policy, named_policy, pack_name
from scheduler.policy_desk import PolicyDesk, current

DEADLINE_S = 30.0


class Runner:
    """Parks at once when asked, and notes what it was told."""

    def __init__(self, ring) -> None:
        self.ring, self.told = ring, []
        self.may_compile = threading.Event()
        self.wrong: Exception | None = None

    def verdict(self) -> int | None:
        return sc.PARKED if self.ring.command[at.C_PARK] else None

    def prepare(self, policy: Policy) -> None:
        assert self.may_compile.wait(DEADLINE_S)
        assert not self.ring.command[at.C_PARK], "the scheduler stands still for no compiler"
        if self.wrong is not None:
            raise self.wrong
        self.told.append(("prepare", policy.name))

    def resume(self, policy: Policy) -> None:
        self.told.append(("resume", policy.name))


@pytest.fixture
def ring():
    geometry = RingGeometry(slots=32, arena_tokens=64, log_entries=2, flight_entries=2)
    words = np.zeros(geometry.words(), np.int64)
    format_ring(words, geometry)
    return host_view(words)


def ask(ring, name: str, number: int) -> None:
    """What `ask_for` writes, and what a scheduler says that has no such preset."""
    ring.command[at.C_POLICY_NAME : at.C_POLICY_NAME + sc.NAME_WORDS] = pack_name(name)
    ring.command[at.C_POLICY] = number
    ring.status[at.S_POLICY_WANTED] = number


def look_until_told(desk: PolicyDesk) -> str | None:
    found = desk.look()
    desk.close()
    return found or desk.look()


def test_the_watchdog_looks_on_while_a_policy_is_compiled(ring):
    runner = Runner(ring)
    desk = PolicyDesk(ring, runner, named_policy("fcfs"))
    ask(ring, "sjf", 1)
    for _ in range(5):
        assert desk.look() is None
    assert runner.told == []
    assert current(ring) == "fcfs"
    runner.may_compile.set()
    assert look_until_told(desk) == "sjf"
    assert runner.told == [("prepare", "sjf"), ("resume", "sjf")]
    assert current(ring) == "sjf"
    assert ring.status[at.S_POLICY] == 1
    assert ring.command[at.C_REFUSED] == 0


@pytest.mark.parametrize(("name", "wrong"), [("nosuch", None), ("sjf", ValueError("no room"))])
def test_what_cannot_be_loaded_is_refused_and_the_scheduler_never_parked(ring, name, wrong):
    runner = Runner(ring)
    runner.may_compile.set()
    runner.wrong = wrong
    desk = PolicyDesk(ring, runner, named_policy("fcfs"))
    ask(ring, name, 1)
    assert look_until_told(desk) is None
    assert ring.command[at.C_REFUSED] == 1
    assert ring.status[at.S_POLICY] == 0
    assert current(ring) == "fcfs"
    assert runner.told == []
    runner.wrong = None
    ask(ring, "sjf", 2)
    assert look_until_told(desk) == "sjf", "a refusal does not end the desk"
