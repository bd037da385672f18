"""Decode graphs launched one behind the other: each has its inputs from the one before, not from the host."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="needs the CUDA bindings")

from blink_numba.engines.cuda import CudaEngine
from graphs._cuda import new_stream
from graphs.capture import GraphSet
from graphs.grid import DECODE, EXECS, shapes
from graphs.step_io import DONE, FAULT, LATE_FAULT, SAMPLING_WORDS, TICKET, late_at, step_view
from tests.cuda_steps import Driver
from tests.gpu.test_cuda_engine import LIMITS, SMALL, make_engine, tokens

STEPS = 40  # over the ends of two blocks
SAMPLED = (800_000, 950_000, 40, 9, 0)


def test_tokens_are_those_of_steps_that_were_waited_for():
    prompts = {3: tokens(20), 7: tokens(33)}
    model, plain = make_engine(SMALL, batch_invariant=True)
    for seat in prompts:
        plain.seat(seat, SAMPLED)
    expected, last = {}, {}
    plain.prefill([(seat, prompt, 0, True) for seat, prompt in prompts.items()])
    for seat in prompts:
        last[seat] = plain.token(seat)
        expected[seat] = [last[seat]]
    for step in range(STEPS):
        plain.decode([(seat, last[seat], len(prompts[seat]) + step) for seat in prompts])
        for seat in prompts:
            last[seat] = plain.token(seat)
            expected[seat].append(last[seat])

    engine, stream = CudaEngine(model, LIMITS, batch_invariant=True, host_io=True, ahead=True), new_stream()
    assert not step_view(engine.host_io).control.any(), "numbers begin anew"

    def run(kind: int, shape: int) -> None:
        engine.enqueue(kind, shape, stream)
        stream.synchronize()

    driver = Driver(engine, run)
    for seat in prompts:
        driver.seat(seat, SAMPLED)
    driver.prefill([(seat, prompt, 0, True) for seat, prompt in prompts.items()])
    found = {seat: [driver.token(seat)] for seat in prompts}
    graphs = GraphSet(engine, stream, device_launch=False)
    graph, io = shapes(engine.spec).index((DECODE, 2)), step_view(engine.host_io)
    io.decode_rows[:2] = list(prompts)
    for seat, prompt in prompts.items():
        io.seat_token[seat], io.seat_position[seat] = found[seat][0], len(prompt)
    io.control[TICKET] = 2
    for first in range(2, 2 + STEPS, 2):
        for ticket in (first, first + 1):  # the second before the first is looked at
            graphs.launch(graph, ticket % EXECS, stream)
        stream.synchronize()
        assert (io.control[DONE], io.control[TICKET]) == (first + 1, first + 2)
        for ticket in (first, first + 1):
            assert io.control[LATE_FAULT + (ticket & 1)] == 0
            for seat in prompts:
                found[seat].append(int(io.late_token[late_at(ticket, engine.spec.seats, seat)]))
    assert found == expected
    for seat, prompt in prompts.items():
        assert (io.seat_token[seat], io.seat_position[seat]) == (found[seat][-1], len(prompt) + STEPS)
    graphs.close()


def test_a_fault_is_told_of_its_own_step():
    """The next step, which is well, does not hide it."""
    _, driver = make_engine(SMALL, host_io=True, ahead=True)
    driver.seat(3)
    driver.io.sampling[3 * SAMPLING_WORDS] = 0
    engine, io = driver.engine, step_view(driver.engine.host_io)
    np.copyto(engine.host_io, driver.words)
    io.decode_rows[0], io.seat_position[3] = 3, LIMITS.max_model_len  # beyond the last position
    io.control[TICKET] = 4
    stream = new_stream()
    engine.enqueue(DECODE, 1, stream)
    stream.synchronize()
    io.seat_token[3], io.seat_position[3] = 5, 0
    engine.enqueue(DECODE, 1, stream)
    stream.synchronize()
    assert (io.control[DONE], io.control[FAULT]) == (5, 0)
    assert io.control[LATE_FAULT] != 0
    assert io.control[LATE_FAULT + 1] == 0
