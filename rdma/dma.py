"""The transport of a ring in GPU memory, for a front end in the process that owns the CUDA context.

Each row is an asynchronous copy on one stream of its own. Copies of a stream run one after the
other, which is the order the protocol asks for; the copy engine works beside the resident
scheduler, which never has to give way (12 µs a copy on an H200, posted and completed from Python).
Another process cannot do this: its writes would wait for a time slice of the GPU.

Everything is allocated by the constructor: while a scheduler kernel is resident nothing may
be, so the transport is made before the scheduler starts.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import numpy as np

from rdma.operations import PUBLISH, READ, Operations
from rdma.staging import Share, Staging
from rdma.transport import DEADLINE_S, RingMap, Transport, TransportError, TransportLost
from ring import layout as at
from ring.memory import process_start_ticks

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: never ordered against the legacy stream
_SPINS = 64


def cuda_driver() -> Any:
    """The CUDA driver's bindings; `TransportError` where they are not installed."""
    try:
        from cuda.bindings import driver  # type: ignore[attr-defined]
    except ImportError:
        raise TransportError("the dma transport needs cuda-bindings: install blink-numba[cuda]") from None
    return driver


class DmaTransport(Transport):
    """Access to a ring in this process's GPU memory.

    Parameters
    ----------
    address : int
        Device address of the ring's first word.
    ring : RingMap
    front_end : int
        Whose staging memory to prepare.
    context : CUcontext, optional
        Made current for the calling thread at every use; by default the context that is
        current now.
    driver : module, optional
        `cuda.bindings.driver`, or something with the same functions.
    """

    name = "dma"

    def __init__(
        self, address: int, ring: RingMap, front_end: int = 0, *, context: Any = None, driver: Any = None
    ) -> None:
        super().__init__(ring)
        self._driver = driver or cuda_driver()
        self._address = address
        self._context = context if context is not None else self._call(self._driver.cuCtxGetCurrent())
        self._closed = False
        self._enter()
        self._room = max(Staging(Share(ring, front_end)).words, ring.geometry.slots)
        self._host = int(self._call(self._driver.cuMemHostAlloc(8 * self._room, 0)))
        self._stream = self._call(self._driver.cuStreamCreate(_NON_BLOCKING))
        self._staging = np.ctypeslib.as_array((ctypes.c_int64 * self._room).from_address(self._host))
        self._staging[:] = 0

    def allocate(self, words: int) -> np.ndarray:
        """The staging memory that the constructor made."""
        if words > self._room:
            raise TransportError(
                f"{words} words of staging memory were asked for, {self._room} were prepared: "
                "name the front end when the transport is made"
            )
        return self._staging[:words]

    def _run(self, batch: Operations) -> None:
        if self._closed:
            raise TransportLost("this transport was closed")
        self._enter()
        for kind, remote, local, words in batch.table[: batch.count].tolist():
            if remote < 0 or words < 0 or remote + words > self.ring.words or local + words > self._room:
                raise TransportError(
                    f"an operation on {words} words at {remote} lies outside the ring of {self.ring.words} "
                    "words or the staging memory"
                )
            device, host = self._address + 8 * remote, self._host + 8 * local
            if kind == READ:
                self._call(self._driver.cuMemcpyDtoHAsync(host, device, 8 * words, self._stream))
            else:
                self._call(self._driver.cuMemcpyHtoDAsync(device, host, 8 * words, self._stream))

    def complete(self, deadline_s: float = DEADLINE_S) -> None:
        if self._closed:
            raise TransportLost("this transport was closed")
        self._enter()
        give_up = time.monotonic() + deadline_s
        spins = 0
        while True:
            (status,) = self._driver.cuStreamQuery(self._stream)
            if status == self._driver.CUresult.CUDA_SUCCESS:
                return
            if status != self._driver.CUresult.CUDA_ERROR_NOT_READY:
                raise TransportLost(f"the CUDA context has failed ({status}): start a new engine")
            spins += 1
            if spins > _SPINS:
                if time.monotonic() >= give_up:
                    raise TransportLost("copies to the ring did not complete in time")
                time.sleep(0.0)

    def identity(self) -> tuple[int, int]:
        return os.getpid(), process_start_ticks(os.getpid()) or 0

    def holder_gone(self, front_end: int, pid: int, started: int) -> bool:
        return pid > 0 and process_start_ticks(pid) != started

    def declare_dead(self, front_end: int) -> int:
        line = self.ring.starts[at.FE_FENCE] + front_end * at.FE_WORDS + at.F_FENCE
        scratch = self._room - 1
        self._one(READ, line, scratch)
        generation = int(self._staging[scratch]) + 1
        self._staging[scratch] = generation
        self._one(PUBLISH, line, scratch)
        return generation

    def _one(self, kind: int, remote: int, local: int) -> None:
        batch = Operations(1)
        batch.add(kind, remote, local, 1)
        self.post(batch)
        self.complete()

    def _enter(self) -> None:
        self._call(self._driver.cuCtxSetCurrent(self._context))

    def _call(self, outcome: tuple) -> Any:
        """The value of a driver call; `TransportError` unless it succeeded."""
        status, *values = outcome
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise TransportError(f"CUDA refused a step of the dma transport: {status}")
        return values[0] if values else None

    def close(self) -> None:
        """Give up the transport. Its memory is freed with the context: freeing would wait for the GPU."""
        self._closed = True
