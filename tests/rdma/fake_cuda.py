"""The few driver functions that the dma transport uses, over this process's memory.

Copies are queued and run late and in order, as a stream's are; it says nothing about a GPU.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace


class FakeDriver:
    """Stands in for `cuda.bindings.driver`."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_NOT_READY=600, CUDA_ERROR_ILLEGAL_ADDRESS=700)

    def __init__(self) -> None:
        self._queued: list[tuple[int, int, int]] = []
        self._memory: list[ctypes.Array] = []
        self.broken = False
        self.stuck = False

    def cuCtxGetCurrent(self):
        return 0, "context"

    def cuCtxSetCurrent(self, context):
        assert context == "context"
        return (0,)

    def cuMemHostAlloc(self, size, flags):
        self._memory.append((ctypes.c_uint8 * size)())
        return 0, ctypes.addressof(self._memory[-1])

    def cuStreamCreate(self, flags):
        return 0, "stream"

    def cuMemcpyDtoHAsync(self, host, device, size, stream):
        self._queued.append((host, device, size))
        return (0,)

    def cuMemcpyHtoDAsync(self, device, host, size, stream):
        self._queued.append((device, host, size))
        return (0,)

    def cuStreamQuery(self, stream):
        if self.broken:
            return (700,)
        if self.stuck:
            return (600,)
        if self._queued:
            ctypes.memmove(*self._queued.pop(0))
            return (600,)
        return (0,)
