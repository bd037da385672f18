"""Schedulers in miniature for `launch`: each launch strategy around a step that computes nothing.

All use the project's own shim and launchers; what the real scheduler does between two launches
is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from blink_numba.bench.launch import (
    ERROR,
    RETRIES,
    STATE_WORDS,
    STEP,
    TARGET,
    TRY_LIMIT,
    TURN,
    WINDOW_LIMIT,
    WINDOWS,
)
from graphs import host_launch
from graphs._cuda import CudaError, check, cuda, driver, new_stream
from graphs.capture import GraphSet, capture, instantiate, load_kernel
from graphs.conditional import instantiate_while
from graphs.device_launch import set_conditional, tail_launch_self
from graphs.grid import DECODE, EXECS, table_view
from graphs.launcher import launch
from graphs.step_io import DONE, TICKET, EngineSpec
from graphs.strategies import CORE_WORDS, FireAndForget, TailPair
from ring.atomics import (
    fence,
    load_acquire_device,
    load_relaxed,
    now_ns,
    pause,
    store_relaxed,
    store_release_device,
)

LANES = 256  # as the scheduler
TRIES = 64
NO_BRANCH = 1 << 30
SPINS = 2_000_000  # about a second: a step that takes longer is lost
END_S = 20.0
NOT_DONE = -1  # error of a step that did not end

_NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY
SPEC = EngineSpec(
    seats=1, decode_batches=(1,), prefill_tokens=(16,), prefill_sequences=1, block_size=16, blocks=1,
    blocks_per_seat=1, max_model_len=16, vocab_size=2, eos_ids=(),
)  # fmt: skip


@cuda.jit(device=True)
def await_done(control, step):
    """Poll for a step's end; 0, or `NOT_DONE` past the deadline."""
    # pairs with the release in release_done
    for _ in range(SPINS):
        if load_acquire_device(control, DONE) == step:
            return 0
    return NOT_DONE


@cuda.jit(device=True)
def open_step(control, step):
    """Write a step's ticket, before its launch."""
    store_relaxed(control, TICKET, step)
    fence()


@cuda.jit(launch_bounds=32)
def release_done(control):
    """The smallest step: DONE = TICKET, by one lane."""
    if cuda.threadIdx.x == 0:
        store_release_device(control, DONE, load_relaxed(control, TICKET))


@cuda.jit
def fire_and_forget(control, core, table_words, state, begun, seen):
    """Launch, poll, launch; at the window's end tail-launch itself."""
    if cuda.threadIdx.x == 0:
        table = table_view(table_words)
        launcher = FireAndForget(core)
        step, turn, target = state[STEP], state[TURN], state[TARGET]
        window, try_limit = state[WINDOW_LIMIT], state[TRY_LIMIT]
        retries, code, launched = 0, 0, 0
        began = now_ns()
        while step < target and launched < window and code == 0:
            open_step(control, step + 1)
            code = launch(launcher, table, turn % EXECS)
            tries = 0
            while code != 0 and tries < try_limit:
                tries += 1
                pause(tries)
                code = launch(launcher, table, (turn + tries) % EXECS)
            retries += tries
            turn += tries + 1
            if code == 0:
                code = await_done(control, step + 1)
            if code == 0:
                ended = now_ns()
                begun[step] = began
                seen[step] = ended - began
                began = ended  # the next launch follows at once
                step += 1
                launched += 1
        state[STEP], state[TURN], state[ERROR] = step, turn, code
        state[RETRIES] += retries
        state[WINDOWS] += 1
        fence()
        if step < target and code == 0:
            state[ERROR] = tail_launch_self()


@cuda.jit
def tail_relaunch(state, begun):
    """A step of one warp that tail-launches itself: what the launch alone costs.

    No fence: the next execution begins after this one ended.
    """
    if cuda.threadIdx.x == 0:
        step, target = state[STEP], state[TARGET]  # both on their way before the first is needed
        begun[step] = now_ns()
        state[STEP] = step + 1
        if step + 1 < target:
            state[ERROR] = tail_launch_self()


@cuda.jit
def tail_pair(control, core, table_words, state, begun):
    """The strategy ``tail``: tail-launch the step, then itself, to run after it."""
    if cuda.threadIdx.x == 0:
        table = table_view(table_words)
        launcher = TailPair(core)
        step = state[STEP]
        if step > 0 and load_acquire_device(control, DONE) != step:  # pairs with the release in release_done
            state[ERROR] = NOT_DONE
        if step < state[TARGET] and state[ERROR] == 0:
            begun[step] = now_ns()
            open_step(control, step + 1)
            state[STEP] = step + 1
            code = launch(launcher, table, step % EXECS)
            if code == 0:
                code = tail_launch_self()
            state[ERROR] = code


@cuda.jit
def while_loop(state, begun, loop):
    """A step in the body of a WHILE node: what the loop alone costs."""
    if cuda.threadIdx.x == 0:
        step = state[STEP]
        begun[step] = now_ns()
        state[STEP] = step + 1
        set_conditional(loop, 1 if step + 1 < state[TARGET] else 0)


@cuda.jit
def while_switch(control, state, begun, loop, switch):
    """The strategy ``while``: choose the branch of a SWITCH node, which is the step."""
    if cuda.threadIdx.x == 0:
        step = state[STEP]
        if step > 0 and load_acquire_device(control, DONE) != step:  # pairs with the release in release_done
            state[ERROR] = NOT_DONE
        if step < state[TARGET] and state[ERROR] == 0:
            begun[step] = now_ns()
            open_step(control, step + 1)
            state[STEP] = step + 1
            set_conditional(switch, 0)
            set_conditional(loop, 1)
        else:
            set_conditional(switch, NO_BRANCH)
            set_conditional(loop, 0)


class SmallestEngine:
    """An engine whose step of any shape is `release_done`."""

    spec = SPEC

    def __init__(self) -> None:
        self.control = cuda.to_device(np.zeros(DONE + 1, np.int64))

    def enqueue(self, kind: int, shape: int, stream: Any) -> None:
        """Enqueue a step."""
        release_done[1, 32, stream](self.control)


class Miniatures:
    """All of them on the current device.

    Parameters
    ----------
    steps : int
        Of each run.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._stream = new_stream()
        self._engine = SmallestEngine()
        load_kernel(release_done, self._engine.control)
        self._graphs = GraphSet(self._engine, self._stream)
        self._table = cuda.to_device(self._graphs.table())
        self._core = cuda.to_device(np.zeros(CORE_WORDS, np.int64))
        self._state = cuda.to_device(np.zeros(STATE_WORDS, np.int64))
        self._begun = cuda.to_device(np.zeros(steps, np.int64))
        self._seen = cuda.to_device(np.zeros(steps, np.int64))
        self._executables: dict[str, Any] = {}
        self._host_steps: Callable[..., int] | None = None
        control, state, begun = self._engine.control, self._state, self._begun
        device = (control, self._core, self._table, state, begun)
        self._resident("faf", fire_and_forget, *device, self._seen)
        self._resident("tail/relaunch", tail_relaunch, state, begun, lanes=32)
        self._resident("tail/pair", tail_pair, *device)
        self._loop("while/loop", while_loop, (state, begun), 1, [])
        self._loop("while/switch", while_switch, (control, state, begun), 2, [self._enqueue_step])

    def _enqueue_step(self) -> None:
        self._engine.enqueue(DECODE, 1, self._stream)

    def _resident(self, name: str, kernel: Any, *arguments: Any, lanes: int = LANES) -> None:
        """Capture a kernel that launches from the device."""
        load_kernel(kernel, *arguments)
        graph = capture(lambda: kernel[1, lanes, self._stream](*arguments), self._stream, name)
        self._executables[name] = instantiate(graph, self._stream, name, device_launch=True)
        driver.cuGraphDestroy(graph)

    def _loop(self, name: str, kernel: Any, arguments: tuple, handles: int, branches: list) -> None:
        """Capture a kernel into the body of a WHILE node; it takes one handle or two."""
        load_kernel(kernel, *arguments, *range(1, handles + 1))
        self._executables[name] = instantiate_while(
            lambda loop, switch: kernel[1, LANES, self._stream](*arguments, *(loop, switch)[:handles]),
            branches,
            self._stream,
        )

    def run(
        self, name: str, *, window: int = 120, tries: int = TRIES
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Run one; its state's words, when each step began and how long until it was seen (ns).

        Raises
        ------
        CudaError
            It failed, or did not end in time.
        """
        state = np.zeros(STATE_WORDS, np.int64)
        state[[TARGET, WINDOW_LIMIT, TRY_LIMIT]] = self._steps, window, tries
        self._state.copy_to_device(state)
        self._engine.control.copy_to_device(np.zeros(self._engine.control.shape[0], np.int64))
        cuda.synchronize()
        check(driver.cuGraphLaunch(self._executables[name], int(self._stream)), f"launching {name}")
        self._wait(name)
        return self._state.copy_to_host(), self._begun.copy_to_host(), self._seen.copy_to_host()

    def _wait(self, name: str) -> None:
        give_up = time.monotonic() + END_S
        while True:
            (code,) = driver.cuStreamQuery(int(self._stream))
            if code != _NOT_READY:
                check((code,), f"running {name}")
                return
            if time.monotonic() > give_up:
                raise CudaError(f"{name} did not end within {END_S:g} s")
            time.sleep(0.001)

    def run_host(self) -> np.ndarray:
        """Launch from compiled host code and wait, step by step; when each began (ns)."""
        if self._host_steps is None:
            host_launch.load_driver()
            self._host_steps = _host_loop()
        begun = np.zeros(self._steps, np.int64)
        code = self._host_steps(*self._graphs.handles[:EXECS], int(self._stream), begun)
        if code != 0:
            raise CudaError(f"launching from the host failed with code {code}")
        return begun

    def close(self) -> None:
        """Destroy the executables."""
        for executable in self._executables.values():
            driver.cuGraphExecDestroy(executable)
        self._graphs.close()


def _host_loop() -> Callable[..., int]:
    launch_from_host, synchronize = host_launch.launch_from_host, host_launch.synchronize

    @numba.njit(nogil=True)
    def steps(first, second, stream, begun):
        code = 0
        for step in range(begun.shape[0]):
            begun[step] = now_ns()
            code = launch_from_host(first if step % 2 == 0 else second, stream)
            if code == 0:
                code = synchronize(stream)
            if code != 0:
                break
        return code

    return steps
