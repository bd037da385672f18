"""Graphs launched from a kernel, from a loop node and from compiled host code: same tokens each time."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="needs the CUDA bindings")

from blink_numba.engines import EngineLimits
from blink_numba.engines.cuda import CudaEngine
from blink_numba.models import ModelConfig, SyntheticModel
from graphs import device_launch, host_launch
from graphs._cuda import check, cuda, driver, new_stream
from graphs.capture import GraphSet, capture, instantiate, load_kernel
from graphs.conditional import instantiate_while
from graphs.grid import DECODE
from graphs.launcher import WINDOW
from graphs.step_io import DONE, TICKET, step_view
from ring.atomics import load_acquire, now_ns
from tests.cuda_steps import Driver

LIMITS = EngineLimits(
    seats=4, max_model_len=512, kv_tokens=4 * 512, prefill_tokens=32, prefill_sequences=4, block_size=16
)
CONFIG = ModelConfig(
    architecture="llama", vocab_size=500, hidden_size=128, intermediate_size=256, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=32, tie_word_embeddings=True, max_position=512, eos_ids=(1,),
)  # fmt: skip
STEPS = 300
PROMPTS = [[5, 6, 7], [100, 101], [20, 30, 40, 50], [9]]
BATCH = len(PROMPTS)

# words of the miniature scheduler's state
STEP, ERROR, WINDOWS, LOG = 0, 1, 2, 8
TIMEOUT_NS = 2_000_000_000


@cuda.jit(device=True)
def publish(io, state):
    """Take a step's tokens: to the log, and as the next step's inputs."""
    step = state[STEP]
    for row in range(BATCH):
        token = io.out_token[row]
        state[LOG + step * BATCH + row] = token
        io.seat_token[row] = token
        io.seat_position[row] += 1
    state[STEP] = step + 1


@cuda.jit
def fire_and_forget_loop(words, handles, state, window):
    """A scheduler in miniature: windows of fire-and-forget launches, then a tail launch of itself."""
    if cuda.threadIdx.x == 0:
        io = step_view(words)
        launched = 0
        while state[STEP] < STEPS and launched < window and state[ERROR] == 0:
            ticket = state[STEP] + 1
            io.control[TICKET] = ticket
            cuda.threadfence()
            state[ERROR] = device_launch.launch_fire_and_forget(handles[state[STEP] & 1])
            start = now_ns()
            # pairs with the release in finish_step
            while state[ERROR] == 0 and load_acquire(io.control, DONE) != ticket:
                if now_ns() - start > TIMEOUT_NS:
                    state[ERROR] = -1
            if state[ERROR] == 0:
                publish(io, state)
                launched += 1
        state[WINDOWS] += 1
        cuda.threadfence()
        if state[STEP] < STEPS and state[ERROR] == 0:
            state[ERROR] = device_launch.tail_launch_self()


@cuda.jit
def loop_turn(words, state, loop, switch):
    """A turn of the WHILE loop: take the last step's tokens, choose the next graph, or stop."""
    if cuda.threadIdx.x == 0:
        io = step_view(words)
        if io.control[TICKET] > 0:
            publish(io, state)
        if state[STEP] < STEPS:
            io.control[TICKET] += 1
            device_launch.set_conditional(switch, 1)
            device_launch.set_conditional(loop, 1)
        else:
            device_launch.set_conditional(switch, 99)
            device_launch.set_conditional(loop, 0)


@pytest.fixture(scope="module")
def setup():
    """An engine with four seats prefilled, its words at that point, and the answers to expect."""
    if not cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    engine = CudaEngine(SyntheticModel("synthetic", CONFIG, scale=0.15), LIMITS, batch_invariant=True)
    stream = new_stream()

    def run(kind: int, shape: int) -> None:
        cuda.synchronize()
        engine.enqueue(kind, shape, stream)
        stream.synchronize()

    drive = Driver(engine, run)
    for seat in range(BATCH):
        drive.seat(seat)
    drive.prefill([(seat, prompt, 0, True) for seat, prompt in enumerate(PROMPTS)])
    first = [drive.token(seat) for seat in range(BATCH)]
    expected, said = [], first
    for step in range(STEPS):
        drive.decode([(seat, said[seat], len(PROMPTS[seat]) + step) for seat in range(BATCH)])
        said = [drive.token(seat) for seat in range(BATCH)]
        expected.append(said)
    return engine, stream, drive, first, np.array(expected)


def _prepare(setup):
    """The step buffer as after the prefill; a cleared state."""
    engine, stream, drive, first, _ = setup
    drive.prefill([(seat, prompt, 0, True) for seat, prompt in enumerate(PROMPTS)])
    drive.io.decode_rows[:BATCH] = range(BATCH)
    drive.io.seat_token[:BATCH] = first
    drive.io.seat_position[:BATCH] = [len(prompt) for prompt in PROMPTS]
    drive.io.control[[TICKET, DONE]] = 0
    engine.io.copy_to_device(drive.words)
    cuda.synchronize()
    return engine, stream, cuda.to_device(np.zeros(LOG + STEPS * BATCH, np.int64))


def _check(state, expected) -> np.ndarray:
    state = state.copy_to_host()
    assert (state[STEP], state[ERROR]) == (STEPS, 0)
    np.testing.assert_array_equal(state[LOG:].reshape(STEPS, BATCH), expected)
    return state


def _run_resident(engine, stream, state, window: int) -> None:
    """Run the miniature scheduler to its end, in a graph that launches itself and the engine's."""
    graphs = GraphSet(engine, stream)
    graph = engine.spec.decode_batches.index(BATCH)
    handles = cuda.to_device(np.array(graphs.handles[2 * graph : 2 * graph + 2], np.int64))
    load_kernel(fire_and_forget_loop, engine.io, handles, state, window)

    def enqueue() -> None:
        fire_and_forget_loop[1, 256, stream](engine.io, handles, state, window)

    scheduler = instantiate(capture(enqueue, stream, "scheduler"), stream, "scheduler", device_launch=True)
    check(driver.cuGraphLaunch(scheduler, int(stream)), "launching the scheduler")
    stream.synchronize()
    driver.cuGraphExecDestroy(scheduler)
    graphs.close()


def test_fire_and_forget_with_windows_and_tail_launches(setup):
    engine, stream, state = _prepare(setup)
    _run_resident(engine, stream, state, WINDOW)
    assert _check(state, setup[-1])[WINDOWS] == -(-STEPS // WINDOW)


def test_the_launch_after_a_full_window_fails_and_says_so(setup):
    engine, stream, state = _prepare(setup)
    _run_resident(engine, stream, state, WINDOW + 1)
    assert state.copy_to_host()[[STEP, ERROR]].tolist() == [WINDOW, 1]


def test_while_graph(setup):
    engine, stream, state = _prepare(setup)
    load_kernel(loop_turn, engine.io, state, 1, 1)
    executable = instantiate_while(
        lambda loop, switch: loop_turn[1, 32, stream](engine.io, state, loop, switch),
        [lambda: engine.enqueue(DECODE, 1, stream), lambda: engine.enqueue(DECODE, BATCH, stream)],
        stream,
    )
    check(driver.cuGraphLaunch(executable, int(stream)), "launching the loop")
    stream.synchronize()
    _check(state, setup[-1])
    driver.cuGraphExecDestroy(executable)


def test_host_launches_from_compiled_code(setup):
    import numba

    engine, stream, _ = _prepare(setup)
    graphs = GraphSet(engine, stream, device_launch=False)
    graph = engine.spec.decode_batches.index(BATCH)
    host_launch.load_driver()
    launch, wait, use = host_launch.launch_from_host, host_launch.synchronize, host_launch.use_context

    @numba.njit(nogil=True)
    def steps(context, first, second, stream, count):
        code = use(context)
        for step in range(count):
            if code == 0:
                code = launch(first if step % 2 == 0 else second, stream)
            if code == 0:
                code = wait(stream)
        return code

    first, second = graphs.handles[2 * graph : 2 * graph + 2]
    assert steps(host_launch.current_context(), first, second, int(stream), 10) == 0
    after = step_view(engine.io.copy_to_host())
    np.testing.assert_array_equal(after.out_token[:BATCH], setup[-1][0])
