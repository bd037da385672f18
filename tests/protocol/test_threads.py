"""Two million transitions: compiled scheduler, engine thread, front-end processes, one of which dies."""

from __future__ import annotations

import pytest

from blink_numba.verify.threads import TRANSITIONS, hammer


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pipelined", [False, True])
def test_history_keeps_the_invariants(pipelined):
    report = hammer(TRANSITIONS, pipelined=pipelined)
    print(report.summary())
    assert report.ok, report.summary()
    assert report.transitions >= TRANSITIONS
    assert report.deaths == 1
    assert report.cancelled > 0
    assert report.preempted > 0
    assert report.windows > 0
