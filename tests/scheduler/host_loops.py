"""The compiled loops of `scheduler.loops.host` over a stand-in for the driver; JSON to standard output.

``python -m tests.scheduler.host_loops host host-pipelined`` runs `tests.decisions` by each of them. In
a process of its own: the driver's names are bound once. A thread is the device: it runs the launches of
the one stream in order, and each step as the CUDA engine does, on its own copy of the inputs.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections import deque
from typing import Any

import llvmlite.binding
import numpy as np

from blink_numba.bench.null_engine import next_token
from blink_numba.engines.limits import EngineLimits
from blink_numba.models import load_model
from blink_numba.runtime.config import EngineConfig
from blink_numba.runtime.cuda_host import LAUNCHER_WORDS, CudaHostBackend, compiled_loop
from graphs.ahead import hand_on, release_ahead
from graphs.grid import DECODE, EXECS, make_table, table_view
from graphs.host_launch import NOT_READY
from graphs.step_io import DONE, FAULT, TICKET, EngineSpec, format_step, step_view, step_words
from ring.atomics import store_release
from ring.jit import njit
from scheduler.policy import named_policy
from scheduler.policy_check import pointers
from tests.decisions import run_scenario, scenario_config

NAMES = ("cuGraphLaunch", "cuStreamSynchronize", "cuStreamQuery", "cuCtxSetCurrent")
_Function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_ssize_t, ctypes.c_ssize_t)
_WAIT_S = 30.0


@njit
def release(control, ticket):
    """End a step as `finish_step_for_host` does."""
    control[FAULT] = 0
    store_release(control, DONE, ticket)


class Device:
    """The driver's four functions and what is behind them."""

    def __init__(self) -> None:
        self.queue: deque[int] = deque()
        self.changed = threading.Condition()
        self.launched = self.over = self.most_in_flight = 0
        self.io: Any = None
        self.functions = [
            _Function(body) for body in (self.launch, self.synchronize, self.query, lambda *_: 0)
        ]
        for name, function in zip(NAMES, self.functions, strict=True):
            llvmlite.binding.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
        threading.Thread(target=self._run, daemon=True).start()

    def reset(self, spec: EngineSpec, host: np.ndarray, ahead: bool) -> None:
        """Serve another engine's step buffer."""
        self.spec, self.host, self.io, self.ahead = spec, host, step_view(host), ahead
        self.table, self.most_in_flight = table_view(make_table(spec)), 0

    def launch(self, executable: int, stream: int) -> int:
        with self.changed:
            self.queue.append(executable)
            self.launched += 1
            self.most_in_flight = max(self.most_in_flight, self.launched - self.over)
            self.changed.notify_all()
        return 0

    def synchronize(self, stream: int, _: int) -> int:
        with self.changed:
            self.changed.wait_for(lambda: not self.queue, _WAIT_S)
        return 0

    def query(self, stream: int, _: int) -> int:
        return NOT_READY if self.queue else 0

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.queue)
                executable = self.queue[0]
            self._step(executable // EXECS)
            with self.changed:
                self.queue.popleft()
                self.changed.notify_all()

    def _step(self, graph: int) -> None:
        own = step_view(self.host.copy())  # what the copy at the head of a step brings to the device
        vocab, ticket = self.spec.vocab_size, int(own.control[TICKET])
        shape = int(self.table.shape[graph])
        if self.table.kind[graph] == DECODE:
            for seat in own.decode_rows[:shape]:
                if seat >= 0:
                    own.out_token[seat] = next_token(own.seat_token[seat], own.seat_position[seat], vocab)
        else:
            for run, seat in enumerate(own.run_seat):
                if seat >= 0 and own.run_samples[run]:
                    last = own.run_start[run + 1] - 1
                    token, position = own.prefill_token[last], own.prefill_position[last]
                    own.out_token[seat] = next_token(token, position, vocab)
        self.io.out_token[:] = own.out_token
        self.over += 1  # before the scheduler can know
        if self.table.kind[graph] == DECODE and self.ahead:
            hand_on(ticket, own.decode_rows, shape, own.seat_position, own.out_token,
                    self.io.seat_token, self.io.seat_position, self.io.late_token, 0, 1)  # fmt: skip
            release_ahead(self.io.control, ticket, 0)
        else:
            release(self.io.control, ticket)


class StandInBackend(CudaHostBackend):
    """The host backend without what needs a GPU: the loop, its thread and its launcher are the real ones."""

    def __init__(self, config: EngineConfig, device: Device) -> None:
        model = load_model(config.model)
        limits = EngineLimits(
            seats=config.max_seats or 0, max_model_len=config.max_model_len,
            kv_tokens=config.kv_tokens or 0, prefill_tokens=config.prefill_tokens or 0,
        )  # fmt: skip
        self._config, self._policy = config, named_policy("fcfs")
        self.ahead = config.launch == "host-pipelined"
        self.spec = limits.spec(model.config)
        self.engine: Any = self
        self.host_io = np.zeros(step_words(self.spec), np.int64)
        format_step(self.host_io, self.spec)
        self._table, self._core = make_table(self.spec), np.zeros(LAUNCHER_WORDS, np.int64)
        self._functions = pointers(self._policy)
        compiled_loop(self.ahead)
        self._state = self._words = self._thread = self._verdict = self._sticky = None
        device.reset(self.spec, self.host_io, self.ahead)

    def close(self) -> None:
        assert self.join(0.0)


def main() -> None:
    """Run the loops named by the arguments."""
    device, found = Device(), {}
    for launch in sys.argv[1:]:
        config = scenario_config("cuda", launch)
        found[launch] = run_scenario(StandInBackend(config, device), config)
        found[launch]["most_in_flight"] = device.most_in_flight
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
