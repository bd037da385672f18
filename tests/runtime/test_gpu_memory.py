"""What of a GPU's memory goes to the KV cache, without a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blink_numba.errors import EngineStartError
from blink_numba.models import SHAPES, ModelConfig
from blink_numba.runtime.config import EngineConfig
from blink_numba.runtime.gpu_memory import (
    GIB,
    OTHER_BYTES,
    Workload,
    activation_bytes,
    kv_token_bytes,
    kv_tokens,
    weight_bytes,
)
from blink_numba.runtime.local import make_backend

LLAMA = SHAPES["llama3-8b"]
WORK = Workload(seats=64, prefill_tokens=2048, prefill_sequences=8, block_size=16, max_model_len=8192)
TOTAL = 80 * GIB


def tokens(config: ModelConfig = LLAMA, work: Workload = WORK, *, total=TOTAL, free=None, utilization=0.9):
    return kv_tokens(config, work, total=total, free=free or total, utilization=utilization)


def test_sizes_of_llama3_8b():
    assert weight_bytes(LLAMA) == pytest.approx(2 * 8.03e9, rel=1e-3)
    assert kv_token_bytes(LLAMA) == 2 * 2 * 32 * 8 * 128


@pytest.mark.parametrize("utilization", [0.3, 0.5, 0.9])
def test_weights_activations_and_cache_take_the_part_asked_for(utilization):
    cache = tokens(utilization=utilization) * kv_token_bytes(LLAMA)
    taken = weight_bytes(LLAMA) + activation_bytes(LLAMA, WORK) + OTHER_BYTES + cache
    assert taken <= TOTAL * utilization
    assert taken > TOTAL * utilization - WORK.block_size * kv_token_bytes(LLAMA)
    assert tokens(utilization=utilization) % WORK.block_size == 0


def test_what_others_hold_is_not_counted_on():
    assert tokens(free=40 * GIB) == tokens(utilization=0.5)


def test_no_more_than_all_seats_can_fill():
    few = replace(WORK, seats=4, max_model_len=1000)
    assert tokens(work=few) == 4 * 1008  # whole blocks


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"total": 16 * GIB}, "the weights alone take 15.0 GiB, and gpu_memory_utilization=0.9 of"),
        ({"utilization": 0.1}, "the weights alone take 15.0 GiB, and .* raise gpu_memory_utilization"),
        ({"total": 19 * GIB}, "the weights take 15.0 GiB and a step .* raise gpu_memory_utilization"),
        ({"free": 3 * GIB}, "the 3.0 GiB that are free of the GPU's 80.0 GiB .* end what else uses the GPU"),
    ],
)  # fmt: skip
def test_no_room_for_a_cache_says_what_takes_it(case, message):
    with pytest.raises(ValueError, match=message):
        tokens(**case)


@pytest.mark.parametrize("utilization", [0.0, -1.0, 1.1, float("nan")])
def test_a_part_is_above_nothing_and_at_most_all(utilization):
    with pytest.raises(ValueError, match="gpu_memory_utilization"):
        tokens(utilization=utilization)


def test_activations_are_those_that_the_engine_allocates(monkeypatch):
    pytest.importorskip("numba.cuda.dispatcher", reason="needs the numba-cuda target")
    from blink_numba.engines import EngineLimits
    from blink_numba.engines.cuda import buffers

    made: list[np.ndarray] = []

    def allocate(shape, dtype) -> np.ndarray:
        made.append(np.empty(shape, dtype))
        return made[-1]

    class StandIn:
        @staticmethod
        def to_device(values: np.ndarray) -> np.ndarray:
            made.append(np.asarray(values))
            return made[-1]

    monkeypatch.setattr(buffers, "device_zeros", allocate)
    monkeypatch.setattr(buffers, "cuda", StandIn)
    config = replace(SHAPES["smollm2"], num_layers=2)
    limits = EngineLimits(seats=8, max_model_len=2000, kv_tokens=4000, prefill_tokens=256, block_size=16)
    buffers.Activations(config, limits.spec(config))
    buffers.rotary_tables(config, 2000)
    work = Workload(8, 256, limits.prefill_sequences, 16, 2000)
    assert sum(array.nbytes for array in made) == pytest.approx(activation_bytes(config, work), rel=0.01)


def test_the_cpu_backend_says_that_it_has_no_gpu_memory():
    with pytest.raises(EngineStartError, match="is of no use to the cpu backend"):
        make_backend(EngineConfig(model="tiny", backend="cpu", gpu_memory_utilization=0.5), print)


def test_a_backend_that_turns_out_to_be_the_cpu_warns(monkeypatch):
    monkeypatch.setattr("blink_numba.runtime.local.cuda_usable", lambda: "no GPU here")
    said: list[str] = []
    config = EngineConfig(model="no such model", backend="auto", gpu_memory_utilization=0.5)
    with pytest.raises(EngineStartError, match="no such model"):
        make_backend(config, said.append)
    assert said[0].startswith("warning: gpu_memory_utilization=0.5 is of no use")
