"""The whole CUDA engine without a GPU: its kernels run in lockstep over NumPy arrays.

Only what launches and allocates is replaced; every argument reaches every kernel as it would.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba.cuda.dispatcher", reason="needs the numba-cuda target")

from numba.cuda.dispatcher import CUDADispatcher

from blink_numba.engines import EngineLimits
from blink_numba.engines.cuda import CudaEngine, buffers, check_config, check_spec, engine, weights
from blink_numba.engines.sampling import FAULT_INPUT
from blink_numba.models import SHAPES, ModelConfig, ModelError, SyntheticModel
from graphs._cuda import driver
from graphs.grid import DECODE
from graphs.step_io import DONE, TICKET, late_at, step_view
from tests.cuda_lockstep import run_kernel
from tests.cuda_reference import forward
from tests.cuda_steps import Driver

LIMITS = EngineLimits(
    seats=2, max_model_len=32, kv_tokens=64, prefill_tokens=11, prefill_sequences=2, block_size=16
)
PROMPT = [5, 40, 7, 99, 23, 61, 12, 88, 3, 70, 31]


class HostArray(np.ndarray):
    """A NumPy array with the methods of a device array that the engine uses."""

    def copy_to_device(self, values) -> None:
        self[...] = values

    def copy_to_host(self) -> np.ndarray:
        return np.array(self)


def _host_array(shape, dtype) -> HostArray:
    return np.zeros(shape, dtype).view(HostArray)


class _Stream:
    """Everything enqueued has run at once."""

    def __int__(self) -> int:
        return 0

    def synchronize(self) -> None:
        return None


def _copy(to: int, source: int, size: int, _stream) -> tuple:
    ctypes.memmove(to, source, size)
    return (driver.CUresult.CUDA_SUCCESS,)


def _config(**changes) -> ModelConfig:
    shape = {
        "architecture": "llama", "vocab_size": 104, "hidden_size": 32, "intermediate_size": 48,
        "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "tie_word_embeddings": True,
        "max_position": 64, "eos_ids": (1,),
    }  # fmt: skip
    return ModelConfig(**{**shape, **changes})


@pytest.fixture(scope="module", autouse=True)
def on_host():
    """Launches run in lockstep, device memory is host memory."""
    stand_in = SimpleNamespace(
        device_array=_host_array,
        to_device=lambda values: np.array(values).view(HostArray),
        synchronize=lambda: None,
        pinned_array=_host_array,
        get_current_device=lambda: SimpleNamespace(MULTIPROCESSOR_COUNT=2),
    )

    def configured(kernel, configuration):
        grid, block, _stream = configuration
        return lambda *arguments: run_kernel(kernel, grid, block, arguments)

    with pytest.MonkeyPatch.context() as patch:
        for module in (buffers, weights, engine):
            patch.setattr(module, "cuda", stand_in)
        patch.setattr(buffers, "device_zeros", _host_array)
        patch.setattr(engine, "new_stream", _Stream)
        patch.setattr(CUDADispatcher, "__getitem__", configured)
        patch.setattr(buffers, "driver", SimpleNamespace(cuMemcpyHtoDAsync=_copy, cuMemcpyDtoHAsync=_copy))
        patch.setattr(buffers, "_pointer", lambda array: array.ctypes.data)
        patch.setattr(buffers, "_device_view", lambda array: array)
        yield


def _driver(model, **options) -> Driver:
    made = CudaEngine(model, LIMITS, batch_invariant=True, **options)
    driver = Driver(made, lambda kind, shape: made.enqueue(kind, shape, _Stream()))
    for seat in range(LIMITS.seats):
        driver.seat(seat)
    return driver


@pytest.fixture(scope="module")
def llama(on_host) -> SimpleNamespace:
    """A driven engine of the Llama architecture, and its model."""
    model = SyntheticModel("small", _config(), scale=0.2)
    return SimpleNamespace(model=model, driver=_driver(model))


def _error(logits: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(logits - expected) / np.linalg.norm(expected))


def _follows_the_reference(model, driver: Driver) -> None:
    """A packed prefill of two runs and a decode step with a padding row."""
    expected, other = forward(model, PROMPT), PROMPT[3:6]
    first = driver.prefill([(1, PROMPT[:8], 0, True), (0, other, 0, True)])
    assert _error(first[0], expected[7]) < 2e-2
    assert _error(first[1], forward(model, other)[-1]) < 2e-2
    assert driver.token(1) == int(np.argmax(first[0]))
    logits = driver.decode([(-1, 0, 0), (1, PROMPT[8], 8)])
    assert _error(logits[1], expected[8]) < 2e-2
    assert driver.token(1) == int(np.argmax(logits[1]))
    assert driver.fault == 0


def test_llama_follows_the_reference(llama):
    _follows_the_reference(llama.model, llama.driver)


@pytest.mark.parametrize(
    "changes",
    [{"architecture": "qwen2", "qkv_bias": True}, {"architecture": "qwen3", "qk_norm": True}],
    ids=["qwen2", "qwen3"],
)
def test_qwen_follows_the_reference(changes):
    model = SyntheticModel("small", _config(num_layers=1, tie_word_embeddings=False, **changes), scale=0.2)
    _follows_the_reference(model, _driver(model))


def test_a_token_is_the_same_bit_for_bit_in_any_batch_seat_and_chunk(llama):
    driver = llama.driver
    whole = driver.prefill([(0, PROMPT, 0, True)])[0]
    driver.prefill([(0, PROMPT[:2], 0, False), (1, PROMPT[:5], 0, False)])
    chunked = driver.prefill([(1, PROMPT[5:], 5, True)])[0]
    np.testing.assert_array_equal(chunked, whole)
    last = len(PROMPT) - 1
    driver.prefill([(0, PROMPT[:last], 0, False)])
    alone = driver.decode([(0, PROMPT[last], last)])[0]
    np.testing.assert_array_equal(alone, whole)
    paired = driver.decode([(1, PROMPT[last], last), (0, PROMPT[last], last)])
    np.testing.assert_array_equal(paired, [whole, whole])


def test_a_step_of_padding_writes_nothing_but_done(llama):
    driver = llama.driver
    before = [np.array(layer) for layer in driver.engine.cache.keys]
    driver.io.out_token[:] = -5
    driver.decode([(-1, 0, 0), (-1, 0, 0)])
    driver.prefill([])
    assert driver.io.out_token.tolist() == [-5, -5]
    np.testing.assert_array_equal(driver.engine.cache.keys, before)


def test_bad_input_is_a_fault_of_its_step_only(llama):
    llama.driver.decode([(0, llama.model.config.vocab_size, 0)])
    assert llama.driver.fault == FAULT_INPUT
    llama.driver.decode([(0, 0, 0)])
    assert llama.driver.fault == 0


@pytest.mark.parametrize("first", [31, 2**31 + 5, -1])
def test_a_prefill_beyond_the_positions_reads_no_block_that_is_not_there(llama, first):
    """Attention goes by the run, not by its rows' seats: it must not look up such a position's block."""
    llama.driver.prefill([(0, [5, 6], first, True), (1, [7], 0, True)])
    assert llama.driver.fault == FAULT_INPUT
    llama.driver.prefill([(1, [7], 0, True)])
    assert llama.driver.fault == 0


@pytest.mark.parametrize("name", ["smollm2", "llama3-8b", "phi4-15b", "qwen3-32b"])
def test_shipped_shapes_are_served(name):
    check_config(SHAPES[name])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_dim": 80}, "head_dim 16, 32, 64, 128"),
        ({"hidden_size": 36}, "hidden_size divisible by 8"),
        ({"num_heads": 130, "num_kv_heads": 2}, "64 query heads"),
        ({"num_experts": 4}, "dense"),
    ],
)
def test_other_shapes_are_refused(changes, said):
    with pytest.raises(ModelError, match=said):
        check_config(_config(**changes))


@pytest.mark.parametrize(
    ("changes", "limits", "said"),
    [
        ({}, {"prefill_tokens": 1 << 16}, "prefill_tokens is 65536: lower it"),
        ({}, {"seats": 1 << 16}, "seats is 65536: lower it"),
        ({"vocab_size": 1024, "eos_ids": tuple(range(513))}, {}, "512 end-of-sequence ids"),
    ],
)
def test_what_no_launch_can_hold_is_refused(changes, limits, said):
    with pytest.raises(ValueError, match=said):
        check_spec(replace(LIMITS, **limits).spec(_config(**changes)))


def test_steps_launched_ahead_have_their_inputs_from_the_step_before(llama):
    """The host writes nothing between them; what it looks at late is there."""
    plain, ahead = llama.driver, _driver(llama.model, host_io=True, ahead=True)
    assert not step_view(ahead.engine.host_io).control.any(), "numbers begin anew"
    for each in (plain, ahead):
        each.prefill([(1, PROMPT[:5], 0, True)])
    token, expected = plain.token(1), []
    for position in (5, 6):
        plain.decode([(1, plain.token(1), position)])
        expected.append(plain.token(1))
    engine, io = ahead.engine, step_view(ahead.engine.host_io)
    assert ahead.token(1) == token
    io.decode_rows[0], io.seat_token[1], io.seat_position[1] = 1, token, 5
    io.control[TICKET] = 2
    for _ in expected:
        engine.enqueue(DECODE, 1, _Stream())
    assert [int(io.late_token[late_at(ticket, LIMITS.seats, 1)]) for ticket in (2, 3)] == expected
    assert (io.control[DONE], io.control[TICKET]) == (3, 4)
    assert (io.seat_token[1], io.seat_position[1]) == (expected[-1], 7)
