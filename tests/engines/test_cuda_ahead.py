"""The end of a decode step behind which the next one is launched: what it leaves where."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba.cuda.dispatcher", reason="needs the numba-cuda target")

from blink_numba.engines.cuda import ahead
from graphs.step_io import DONE, FAULT, LATE_FAULT, TICKET


@pytest.mark.parametrize("ticket", [40, 41])
def test_tokens_become_inputs_and_are_kept_for_a_late_look(run, ticket):
    control, step_control, fault = np.zeros(16, np.int64), np.zeros(16, np.int64), np.array([3], np.int64)
    control[TICKET] = step_control[TICKET] = ticket
    control[LATE_FAULT : LATE_FAULT + 2] = -7
    rows = np.array([2, 0, -1, 3], np.int64)  # the last one is beyond the graph's batch
    position, token = np.array([8, -7, 5, -7], np.int64), np.array([70, -7, 72, -7], np.int64)
    next_token, next_position, late = (np.full(n, -1, np.int64) for n in (4, 4, 8))
    arguments = (
        control, fault, step_control, rows, 3, position, token, next_token, next_position, late
    )  # fmt: skip
    run(ahead.finish_step_ahead, 1, ahead.THREADS, arguments)
    assert next_token.tolist() == [70, -1, 72, -1]
    assert next_position.tolist() == [9, -1, 6, -1]
    halves = [[-1] * 4, [70, -1, 72, -1]] if ticket % 2 else [[70, -1, 72, -1], [-1] * 4]
    assert late.reshape(2, 4).tolist() == halves, "the step before it may not have been looked at yet"
    assert (control[DONE], control[TICKET], control[FAULT], fault[0]) == (ticket, ticket + 1, 0, 0)
    assert control[LATE_FAULT : LATE_FAULT + 2].tolist() == ([-7, 3] if ticket % 2 else [3, -7])
