"""Configurations too large to exhaust, and preempting policies: seeded random executions."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("greenlet", reason="the model checker needs greenlet")

from blink_numba.verify.configurations import CONFIGURATIONS, IN_CI, LARGER
from blink_numba.verify.model import Model
from blink_numba.verify.story import encode, tell
from blink_numba.verify.walk import random_chooser, replay, walk
from scheduler.policies import SHIPPED

REST = [name for name in CONFIGURATIONS if name not in IN_CI]


def check(setup, seeds) -> None:
    model, moves = Model(setup), 0
    for seed in seeds:
        outcome = walk(model, random_chooser(seed))
        moves += len(outcome.trace)
        if outcome.violation is not None:
            story = "\n".join(tell(Model(setup), outcome.trace)[-60:])
            pytest.fail(
                f"seed {seed}: {outcome.violation}\n{story}\nreplay: {setup.name}:{encode(outcome.trace)}"
            )
        assert outcome.finished
    assert moves > 50 * len(seeds)


@pytest.mark.parametrize("name", [*LARGER, *REST])
def test_no_violation(name):
    check(LARGER[name] if name in LARGER else CONFIGURATIONS[name], range(16))


@pytest.mark.parametrize("policy", sorted(SHIPPED))
def test_every_policy_keeps_the_protocol(policy):
    for name in ("displace", "crowd"):
        check(replace(LARGER[name], policy=policy), range(6))


def test_a_trace_replays():
    setup = CONFIGURATIONS["cancel"]
    first = walk(Model(setup), random_chooser(5))
    again = replay(Model(setup), first.trace)
    assert again.finished
    assert again.trace == first.trace
