"""Planted bugs in the real sources: each is killed, by an invariant named for it."""

from __future__ import annotations

import pytest

pytest.importorskip("greenlet", reason="the model checker needs greenlet")

from blink_numba.verify.configurations import find
from blink_numba.verify.invariants import INVARIANTS
from blink_numba.verify.model import Model, fresh_copy
from blink_numba.verify.mutants import MUTANTS, run_mutant
from blink_numba.verify.story import tell


def test_there_are_enough_of_them():
    assert len(MUTANTS) >= 25
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert set(mutant.killers) <= set(INVARIANTS), mutant.name


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_killed(mutant):
    death = run_mutant(mutant)
    where = f"{death.setup}, {death.walks} walks, {death.seconds:.1f} s"
    print(f"{mutant.name:28} killed by {death.invariant:22} ({where})")
    assert death.killed, f"{death.invariant or 'lives'}: {death.detail}"


def test_the_story_of_a_death_ends_with_the_violation():
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "log-head-last")
    death = run_mutant(mutant)
    edits = {module: [(old, new)] for module, old, new in mutant.edits}
    lines = tell(Model(find(death.setup), fresh_copy(edits)), death.trace)
    assert lines[-1].strip().startswith("log-covers-count violated")
    assert any("ctl[0] = incarnation 1, 1 tokens" in line for line in lines)
