"""The named configurations, exhausted: every state seen, every invariant kept, an end within reach."""

from __future__ import annotations

import pytest

pytest.importorskip("greenlet", reason="the model checker needs greenlet")

from blink_numba.verify.configurations import CONFIGURATIONS, IN_CI
from blink_numba.verify.explore import Explorer
from blink_numba.verify.model import Model
from blink_numba.verify.story import tell

# searches of such size that their count of states would show a search that looks away
SMALLEST = {
    "two-requests": 5_000,
    "cancel": 3_000,
    "crash": 20_000,
    "two-front-ends": 5_000,
    "two-lanes-one-slot": 10_000,
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", IN_CI)
def test_exhausted(name, record_property):
    setup = CONFIGURATIONS[name]
    outcome = Explorer(Model(setup)).run()
    story = "\n".join(tell(Model(setup), outcome.trace)) if outcome.violation else ""
    assert outcome.violation is None, f"{outcome.violation}\n{story}"
    assert outcome.exhausted
    assert outcome.goals > 0
    assert outcome.states >= SMALLEST.get(name, 200)
    for figure in ("states", "transitions", "executions", "deepest", "cpu_seconds"):
        record_property(figure, getattr(outcome, figure))
    print(f"{name}: exhausted: true, {outcome.states} states, {outcome.transitions} transitions, "
          f"{outcome.executions} ends, {outcome.cpu_seconds:.1f} s")  # fmt: skip
