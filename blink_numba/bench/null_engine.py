"""An engine that computes nothing: what is left of a step is launch and scheduler.

``python -m blink_numba.bench.null_engine`` is the engine's process, as ``blink_numba.runtime``, with
steps of known lengths (`BusyBackend`).

The next token is a fixed function of a seat's last token and its position, so every token of
every answer can be checked. For GPUs; one kernel is a whole step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from blink_numba.engines.cuda.ahead import enqueue_finish_ahead
from blink_numba.engines.cuda.buffers import StepBuffer, device_zeros
from blink_numba.engines.cuda.sample import finish_step_for_host
from blink_numba.engines.limits import EngineLimits
from blink_numba.models import Model, load_model
from blink_numba.runtime import EngineConfig
from blink_numba.runtime.__main__ import main
from blink_numba.runtime.cuda import CudaBackend
from blink_numba.runtime.cuda_host import CudaHostBackend
from graphs._cuda import cuda, new_stream
from graphs.grid import DECODE, shapes
from graphs.step_io import DONE, FAULT, TICKET, EngineSpec
from ring.atomics import lane_barrier, load_relaxed, now_ns, store_release_device
from ring.jit import njit
from scheduler.policy import named_policy

THREADS = 256
BUSY_NS = 300_000  # of the steps of `BusyBackend`: their lengths spread over more than a scan's period


@njit
def next_token(token, position, vocab_size):
    """The token after `token` at `position`; int64 throughout."""
    return (token * 48271 + position * 69621 + 11) % 2147483647 % vocab_size


@njit
def expected_answer(last, length, answer, vocab_size):
    """Fill `answer` with what follows a prompt of `length` tokens that ends with `last`."""
    token = last
    for index in range(answer.shape[0]):
        token = next_token(token, length - 1 + index, vocab_size)
        answer[index] = token


@njit
def decode_rows(rows, seat_token, seat_position, out_token, vocab_size, batch, lane, lanes):
    """A decode step's tokens; each lane its rows."""
    for row in range(lane, batch, lanes):
        seat = rows[row]
        if seat >= 0:
            out_token[seat] = next_token(seat_token[seat], seat_position[seat], vocab_size)


@njit
def prefill_runs(run_seat, run_start, run_samples, token, position, out_token, vocab_size, lane, lanes):
    """A prefill step's tokens; each lane its runs."""
    for run in range(lane, run_seat.shape[0], lanes):
        if run_seat[run] >= 0 and run_samples[run] != 0:
            last = run_start[run + 1] - 1
            out_token[run_seat[run]] = next_token(token[last], position[last], vocab_size)


@njit
def busy_time(ticket, busy_ns):
    """How long the step of a ticket lasts, in ns: `busy_ns`, give or take a fifth.

    Steps of one length would end at the same moment between two scans of the ring, early or late by
    microseconds as the code of the scheduler happens to be laid out. Ninety-six lengths, each as often.
    """
    return busy_ns + busy_ns // 240 * (ticket * 37 % 96 - 48)


@cuda.jit
def null_decode(rows, seat_token, seat_position, out_token, vocab_size, batch, control, releases, busy_ns):
    """A decode step in one kernel of at least its `busy_time`; it releases DONE unless another one does."""
    began = now_ns()
    lasts = busy_time(load_relaxed(control, TICKET), busy_ns)
    decode_rows(rows, seat_token, seat_position, out_token, vocab_size, batch, cuda.threadIdx.x, THREADS)
    lane_barrier()
    while now_ns() - began < lasts:
        pass
    if cuda.threadIdx.x == 0 and releases != 0:
        control[FAULT] = 0
        store_release_device(control, DONE, load_relaxed(control, TICKET))


@cuda.jit
def null_prefill(run_seat, run_start, run_samples, token, position, out_token, vocab_size, control, releases):
    """A prefill step in one kernel."""
    prefill_runs(
        run_seat, run_start, run_samples, token, position, out_token, vocab_size, cuda.threadIdx.x, THREADS
    )
    lane_barrier()
    if cuda.threadIdx.x == 0 and releases != 0:
        control[FAULT] = 0
        store_release_device(control, DONE, load_relaxed(control, TICKET))


class NullEngine:
    """The engine, with the interface of `blink_numba.engines.cuda.CudaEngine`.

    Parameters
    ----------
    spec : EngineSpec
    host_io : bool
        Made for a scheduler on the CPU: see `StepBuffer`.
    ahead : bool
        That scheduler launches decode steps ahead.
    busy_ns : int
        A decode step takes about so long (`busy_time`), as it would with something to compute.
    """

    def __init__(
        self, spec: EngineSpec, *, host_io: bool = False, ahead: bool = False, busy_ns: int = 0
    ) -> None:
        self.spec, self._busy_ns = spec, busy_ns
        self._step = StepBuffer(spec, on_host=host_io, ahead=ahead)
        self.io, self.host_io = self._step.words, self._step.host
        self._fault = device_zeros((1,), np.int64)
        stream = new_stream()
        for kind, shape in shapes(spec):  # loads the code
            self.enqueue(kind, shape, stream)
        stream.synchronize()
        self._step.forget_steps()

    @property
    def control(self) -> Any:
        """TICKET, DONE and FAULT where the scheduler has them."""
        return self._step.control

    def enqueue(self, kind: int, shape: int, stream: Any) -> None:
        """Enqueue a step; one kernel when the scheduler is on the device."""
        step, vocab_size = self._step, self.spec.vocab_size
        releases = 1 if self.host_io is None else 0
        step.enqueue_inputs(stream)
        if kind == DECODE:
            null_decode[1, THREADS, stream](
                step.decode_rows, step.seat_token, step.seat_position, step.out_token, vocab_size, shape,
                step.control, releases, self._busy_ns,
            )  # fmt: skip
        else:
            null_prefill[1, THREADS, stream](
                step.run_seat, step.run_start, step.run_samples, step.prefill_token, step.prefill_position,
                step.out_token, vocab_size, step.control, releases,
            )  # fmt: skip
        if not releases:
            step.enqueue_outputs(stream)
            if kind == DECODE and step.ahead:
                enqueue_finish_ahead(step, shape, self._fault, stream)
                return
            finish_step_for_host[1, 32, stream](step.control, self._fault)


class NullBackend(CudaBackend):
    """A resident scheduler over a `NullEngine` of the model's vocabulary."""

    busy_ns = 0  # of a decode step

    def _make_engine(self, model: Model, limits: EngineLimits) -> NullEngine:
        return NullEngine(limits.spec(model.config), busy_ns=self.busy_ns)


class BusyBackend(NullBackend):
    """Steps of known lengths, the same in every process: those of a model differ by microseconds."""

    busy_ns = BUSY_NS


class NullHostBackend(CudaHostBackend):
    """A scheduler on the host over a `NullEngine`."""

    def _make_engine(self, model: Model, limits: EngineLimits) -> NullEngine:
        return NullEngine(limits.spec(model.config), host_io=True, ahead=self.ahead)


def _make_busy(config: EngineConfig, progress: Callable[[str], None]) -> BusyBackend:
    model = load_model(config.model, dummy=config.dummy)
    return BusyBackend(model, config, named_policy(config.policy), progress)


if __name__ == "__main__":
    sys.exit(main(_make_busy))
