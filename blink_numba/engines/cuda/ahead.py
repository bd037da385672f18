"""The last node of a decode step behind which the next one may be launched already (`graphs.ahead`)."""

from __future__ import annotations

from typing import Any

from blink_numba.engines.cuda._cuda import cuda
from blink_numba.engines.cuda.buffers import StepBuffer
from graphs.ahead import hand_on, release_ahead
from graphs.step_io import TICKET
from ring.atomics import lane_barrier

THREADS = 128


@cuda.jit(launch_bounds=THREADS)
def finish_step_ahead(
    control, fault, step_control, rows, batch, position, token, next_token, next_position, late_token
):
    """As `finish_step_for_host`, and the step's tokens become the next step's inputs. One block.

    Parameters
    ----------
    control : int64[16]
        In the scheduler's memory, the host's; so are `next_token`, `next_position`, `late_token`.
    fault : int64[1]
    step_control, rows, position, token
        ``control``, ``decode_rows``, ``seat_position`` and ``out_token`` as the step has them, on the device.
    batch : int
    next_token, next_position : int64[seats]
        ``seat_token``, ``seat_position``.
    late_token : int64[2 * seats]
    """
    lane, ticket = cuda.threadIdx.x, step_control[TICKET]
    hand_on(ticket, rows, batch, position, token, next_token, next_position, late_token, lane, THREADS)
    lane_barrier()  # the release below is for what all lanes wrote
    if lane == 0:
        ended = fault[0]
        fault[0] = 0
        release_ahead(control, ticket, ended)


def enqueue_finish_ahead(step: StepBuffer, batch: int, fault: Any, stream: Any) -> None:
    """Enqueue the end of a decode step of `batch` rows, after its outputs are on their way."""
    host = step.in_host_memory
    finish_step_ahead[1, THREADS, stream](
        step.control, fault, step.step_control, step.decode_rows, batch, step.seat_position, step.out_token,
        host("seat_token"), host("seat_position"), host("late_token"),
    )  # fmt: skip
