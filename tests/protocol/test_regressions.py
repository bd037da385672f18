"""Bugs that the checker found in the scheduler: planted again they are caught, as it is there are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("greenlet", reason="the model checker needs greenlet")

from blink_numba.verify.configurations import find
from blink_numba.verify.model import Model, fresh_copy
from blink_numba.verify.mutants import MUTANTS
from blink_numba.verify.walk import random_chooser, walk

# bug as it was found: the mutant that plants it again, where, by which invariant
FOUND = [
    # Control words went out before the log's head: a reader took fresh entries for lost ones,
    # and read the slot from its extent for the rest of its life.
    ("log-head-last", "reuse", "log-covers-count"),
    # A preempted request's last words waited for the end of the turn: a first token just out made
    # an illegal edge, and with another seat in the same turn PAUSED would have come last.
    ("preempted-late", "displace", "legal-edges"),
    # One lane noted deaths and the stop word while others judged requests by them.
    ("deaths-judged-early", "crash-lanes", "no-data-race"),
    # The oldest of those that waited did not fit and was cancelled: the next, which fits, was not
    # tried before another request ended.
    ("leaver-unnoticed", "cancel-queue", "work-conserving"),
]


@pytest.mark.parametrize(("name", "setup", "invariant"), FOUND)
def test_found_again_and_gone(name, setup, invariant):
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    edits = {module: [(old, new)] for module, old, new in mutant.edits}
    planted = Model(replace(find(setup)), fresh_copy(edits))
    seed = next(
        seed for seed in range(200)
        if (outcome := walk(planted, random_chooser(seed))).violation is not None
        and outcome.violation.invariant == invariant
    )  # fmt: skip
    assert walk(Model(find(setup)), random_chooser(seed)).finished
