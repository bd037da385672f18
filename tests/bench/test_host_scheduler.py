"""The scheduler that launches from the host, with the driver's functions replaced: no GPU is needed.

The stand-ins run the null engine's step at the launch, so the endurance bench's check of every
token runs here too, over the real ring, scheduler and port.
"""

from __future__ import annotations

import ctypes
import os
import threading

import llvmlite.binding
import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="needs the CUDA bindings")
pytest.importorskip("numba.cuda.dispatcher", reason="needs the numba-cuda target")

from blink_numba.bench import endurance
from blink_numba.bench.null_engine import decode_rows, expected_answer, prefill_runs
from blink_numba.runtime.probe import cuda_usable
from graphs import host_launch
from graphs.grid import DECODE, EXECS, make_table, shapes
from graphs.step_io import DONE, TICKET, EngineSpec, format_step, step_view, step_words
from rdma import FrontEndPort, ShmTransport
from ring import layout as at
from ring.layout import RingGeometry
from ring.memory import RingMemory
from scheduler import state as sc
from scheduler.build import set_up
from scheduler.policy import named_policy

VOCAB = 259
SPEC = EngineSpec(
    seats=8, decode_batches=(1, 8), prefill_tokens=(16, 64), prefill_sequences=4, block_size=16, blocks=160,
    blocks_per_seat=20, max_model_len=320, vocab_size=VOCAB, eos_ids=(),
)  # fmt: skip
STREAM, CONTEXT = 41, 42


class FakeDriver:
    """``cuGraphLaunch`` and its like over a step buffer: a launch is a whole step."""

    def __init__(self) -> None:
        self.io = np.zeros(step_words(SPEC), np.int64)
        format_step(self.io, SPEC)
        self.launches: list[int] = []
        self.fail_at = -1
        step = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_ssize_t, ctypes.c_ssize_t)
        wait = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_ssize_t)
        self._kept = step(self._launch), wait(lambda stream: 0), wait(lambda context: int(context != CONTEXT))
        for name, function in zip(("cuGraphLaunch", "cuStreamSynchronize", "cuCtxSetCurrent"), self._kept):
            llvmlite.binding.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
        llvmlite.binding.add_symbol("cuStreamQuery", ctypes.cast(self._kept[1], ctypes.c_void_p).value)

    def _launch(self, executable: int, stream: int) -> int:
        if len(self.launches) == self.fail_at or stream != STREAM:
            self.fail_at = -1
            return 1
        self.launches.append(executable)
        io = step_view(self.io)
        kind, shape = shapes(SPEC)[executable // EXECS]
        if kind == DECODE:
            decode_rows(io.decode_rows, io.seat_token, io.seat_position, io.out_token, VOCAB, shape, 0, 1)
        else:
            prefill_runs(io.run_seat, io.run_start, io.run_samples, io.prefill_token, io.prefill_position,
                         io.out_token, VOCAB, 0, 1)  # fmt: skip
        io.control[DONE] = io.control[TICKET]
        return 0


@pytest.fixture(scope="module")
def fake_driver():
    if cuda_usable() is None:
        pytest.skip("the real driver would be replaced")
    return FakeDriver()


@pytest.fixture
def scheduler(fake_driver):
    """A ring with the host scheduler running over the fake driver, and a port to it."""
    from blink_numba.runtime.cuda_host import compiled_loop
    from scheduler.policy_check import pointers

    name = f"test-{os.getpid()}-host"
    ring = RingMemory.create(
        name, RingGeometry(slots=64, arena_tokens=1 << 15), max_model_len=SPEC.max_model_len, vocab_size=VOCAB
    )
    policy = named_policy("fcfs")
    state = sc.make_state(SPEC, ring.geometry, step_deadline_s=20.0)
    set_up(state, policy)
    core = np.zeros(8, np.int64)
    core[host_launch.L_STREAM], core[host_launch.L_CONTEXT] = STREAM, CONTEXT
    words = ring.words
    arguments = (words, words.view(np.int32), state, fake_driver.io, make_table(SPEC), core)
    verdicts: list[int] = []
    thread = threading.Thread(
        target=lambda: verdicts.append(int(compiled_loop()(*arguments, *pointers(policy)))), daemon=True
    )
    thread.start()
    port = FrontEndPort(ShmTransport.attach(name))
    yield ring, port, fake_driver
    port.close()
    ring.view.command[at.C_STOP] = at.STOP
    thread.join(20.0)
    assert verdicts == [sc.STOPPED]
    assert ring.view.status[at.S_PHASE] == at.PHASE_STOPPED
    ring.close()


def _expect(request) -> np.ndarray:
    answer = np.zeros(request.max_tokens, np.int64)
    expected_answer(int(request.prompt[-1]), len(request.prompt), answer, VOCAB)
    return answer


def test_every_token_of_every_answer_is_right(scheduler):
    ring, port, driver = scheduler
    driver.fail_at = 200  # a launch that fails is tried again with the other executable
    status = ring.view.status
    checked = endurance.check_answers(
        port, _expect, lambda: int(status[at.S_STEPS]), 600, VOCAB, deadline_s=100.0, in_flight=12
    )
    assert checked.lost == 0, checked.examples
    assert checked.requests > 12
    assert checked.tokens > 12 * endurance.TOKENS[0]
    assert status[at.S_RETRIES] == 1
    assert status[at.S_BLOCKS_FREE] == SPEC.blocks
    decodes = [launched for launched in driver.launches if launched // EXECS < len(SPEC.decode_batches)]
    assert {launched % EXECS for launched in decodes} == {0, 1}, "executables are used in turn"


def test_a_wrong_token_is_counted():
    checked = endurance.Checked()
    checked.compare(np.array([1, 2, 3]), np.array([1, 5, 3]), "LENGTH")
    checked.compare(np.array([1, 2]), np.array([1, 2, 3]), "ERROR")
    checked.compare(np.array([1, 2]), np.array([1, 2]), "LENGTH")
    assert (checked.requests, checked.tokens, checked.lost) == (3, 8, 2)
    assert checked.examples == ["LENGTH: 1 of 3 tokens", "ERROR: 1 of 3 tokens"]
