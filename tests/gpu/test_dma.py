"""A ring in GPU memory: the contract of transports over real copies; a scheduler that serves from there."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="needs the CUDA bindings")

from cuda.bindings import driver

from blink_numba.models import load_model
from blink_numba.runtime.cuda import CudaBackend
from graphs._cuda import check, cuda
from rdma import FrontEndPort, Handle, RingMap
from rdma.dma import DmaTransport
from rdma.operations import PUBLISH, Operations
from ring import layout as at
from ring.layout import RingGeometry
from ring.views import format_ring, host_view
from scheduler.policy import named_policy
from tests.decisions import LENGTHS, collect, run_scenario, scenario_config, scenario_requests
from tests.rdma.contract import CONTRACT, SIZES, Bench

MAX_MODEL_LEN, VOCAB = 256, 1000


class WordsInGpuMemory:
    """A ring's words in GPU memory, which this process reads and writes by copies of its own."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = cuda.to_device(words)
        self.narrow = self.words.view(np.int32)
        self.address = int(self.words.gpu_data.device_ctypes_pointer.value)
        self._context = check(driver.cuCtxGetCurrent(), "the context")
        cuda.synchronize()

    def __getitem__(self, where: int | slice) -> np.ndarray | np.int64:
        start, words = self._range(where)
        found = np.zeros(words, np.int64)
        check(driver.cuMemcpyDtoH(found.ctypes.data, self.address + 8 * start, 8 * words), "reading")
        return found if isinstance(where, slice) else found[0]

    def __setitem__(self, where: int | slice, values) -> None:
        start, words = self._range(where)
        given = np.array(np.broadcast_to(values, words), np.int64)
        check(driver.cuMemcpyHtoD(self.address + 8 * start, given.ctypes.data, 8 * words), "writing")

    def _range(self, where: int | slice) -> tuple[int, int]:
        check(driver.cuCtxSetCurrent(self._context), "entering the context")  # any thread may call
        if isinstance(where, slice):
            start, stop, _ = where.indices(self.words.shape[0])
            return start, stop - start
        return where, 1

    def close(self) -> None:
        """The memory goes with its last user."""


@pytest.mark.parametrize("rule", CONTRACT, ids=lambda rule: rule.__name__)
def test_contract(rule):
    words = formatted(RingGeometry(**SIZES), MAX_MODEL_LEN, VOCAB)
    ring = WordsInGpuMemory(words)
    with DmaTransport(ring.address, RingMap.of(RingGeometry(**SIZES), host_view(words).info)) as transport:
        rule(Bench(ring, transport))


def formatted(geometry: RingGeometry, max_model_len: int, vocab: int) -> np.ndarray:
    words = np.zeros(geometry.words(), np.int64)
    format_ring(words, geometry)
    info = host_view(words).info
    info[at.I_MAX_MODEL_LEN], info[at.I_VOCAB_SIZE] = max_model_len, vocab
    info[at.I_PLACEMENT] = at.DEVICE_PLACEMENT
    return words


class BackendOfRingInGpuMemory(CudaBackend):
    """Takes the ring that is given to GPU memory."""

    placed: WordsInGpuMemory

    def _place_ring(self, words):
        return self.placed


def test_a_scheduler_serves_a_ring_in_gpu_memory():
    """No word of the ring is in host memory: requests, tokens and the stop all go by the copy engine."""
    config = scenario_config("cuda")
    model = load_model(config.model)
    backend = BackendOfRingInGpuMemory(model, config, named_policy(config.policy), lambda line: None)
    spec = backend.spec
    geometry = config.geometry(spec.max_model_len)
    words = formatted(geometry, spec.max_model_len, spec.vocab_size)
    view = host_view(words)  # a copy of before: only what the backend writes for itself
    backend.placed = WordsInGpuMemory(words)
    ring = RingMap.of(geometry, view.info)
    backend.new_state(geometry, at.DEVICE_PLACEMENT)
    port = FrontEndPort(DmaTransport(backend.placed.address, ring))
    host = DmaTransport(backend.placed.address, ring)  # made before the scheduler is there, used to stop it
    stop = Operations(1)
    stop.add(PUBLISH, ring.starts[at.COMMAND] + at.C_STOP, 0, 1)
    host.allocate(1)[0] = at.STOP
    port.warm_up()
    backend.start(words, view)
    handles = port.submit_many(scenario_requests())
    assert all(isinstance(handle, Handle) for handle in handles), handles
    answers = collect(port, handles)
    host.post(stop)
    host.complete()
    assert backend.join(20.0), "the scheduler did not stop"
    port.close(deadline_s=0.0)
    backend.close()
    assert [len(answer) for answer in answers] == [tokens for _, tokens in LENGTHS]

    again = CudaBackend(model, config, named_policy(config.policy), lambda line: None)
    assert answers == run_scenario(again, config)["answers"], "as from a ring in host memory"
