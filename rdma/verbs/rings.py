"""Where a hosted ring lies, and how its host registers memory and reads its lines.

In host memory that is a matter of addresses. In GPU memory the NIC reaches it by dma-buf, or
through nvidia-peermem, and the host itself only by copies. The GPU part follows the
documentation of CUDA and rdma-core; it has never run (see rdma/README.md).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from rdma.dma import DmaTransport, cuda_driver
from rdma.fencing import declare_dead, front_end_is_dead, holder_ended
from rdma.operations import READ, Operations
from rdma.transport import RingMap
from rdma.verbs.provider import Device, Region
from ring import layout as at
from ring.memory import RingMemory

_PAGE = 1 << 16  # GPU mappings are made of pages of 64 KiB


class HostedRing(Protocol):
    """A ring that a `RingHost` serves."""

    map: RingMap

    def register(self, device: Device, start: int, words: int, write: bool) -> tuple[Region, int]:
        """Register words ``[start, start + words)``; the region and their remote address."""
        ...

    def line(self, front_end: int) -> np.ndarray:
        """The front end's line of FE_PORT as it is now, int64[8]."""
        ...

    def fence(self, front_end: int) -> int:
        """Generation of the last declared death."""
        ...

    def local_holder_gone(self, front_end: int) -> bool:
        """Whether a process of this host signed the line and has ended."""
        ...

    def declare_dead(self, front_end: int) -> int:
        """Raise the fence of a front end known to be gone; the generation to wait for."""
        ...


class MappedRing:
    """A ring in host memory that this process maps."""

    def __init__(self, memory: RingMemory) -> None:
        self.map = RingMap.of(memory.geometry, memory.view.info)
        self._memory, self._view = memory, memory.view
        self._base = memory.words.ctypes.data

    def register(self, device: Device, start: int, words: int, write: bool) -> tuple[Region, int]:
        address = self._base + 8 * start
        region = device.register(address, 8 * words, remote_read=not write, remote_write=write)
        return region, address

    def line(self, front_end: int) -> np.ndarray:
        return self._view.fe_port[front_end * at.FE_WORDS : (front_end + 1) * at.FE_WORDS]

    def fence(self, front_end: int) -> int:
        return int(self._view.fe_fence[front_end * at.FE_WORDS + at.F_FENCE])

    def local_holder_gone(self, front_end: int) -> bool:
        return front_end_is_dead(self._view, front_end)

    def declare_dead(self, front_end: int) -> int:
        return declare_dead(self._view, front_end)


class GpuRing:
    """A ring in this process's GPU memory.

    Parameters
    ----------
    address : int
        Device address of the ring's first word; its allocation begins on a page of 64 KiB.
    ring : RingMap
    dma : DmaTransport
        Of the host's own, made before the scheduler became resident; used for lines only.
    driver : module, optional
        `cuda.bindings.driver`, or something with the same functions.
    """

    def __init__(self, address: int, ring: RingMap, dma: DmaTransport, driver: Any = None) -> None:
        if address % _PAGE:
            raise ValueError(f"a ring at {address:#x} cannot be exported: align it to {_PAGE} bytes")
        self.map = ring
        self._address, self._dma = address, dma
        self._staging = dma.allocate(2 * at.FE_WORDS)
        self._dmabuf = self._export(driver or cuda_driver())

    def _export(self, driver: Any) -> int | None:
        """File descriptor of the ring's dma-buf; None where CUDA makes none (then nvidia-peermem)."""
        kind = driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
        size = -(-8 * self.map.words // _PAGE) * _PAGE
        status, descriptor = driver.cuMemGetHandleForAddressRange(self._address, size, kind, 0)
        return int(descriptor) if status == driver.CUresult.CUDA_SUCCESS else None

    def register(self, device: Device, start: int, words: int, write: bool) -> tuple[Region, int]:
        offset = 8 * start
        region = device.register_gpu(
            self._address + offset, 8 * words, dmabuf_fd=self._dmabuf, offset=offset, remote_write=write
        )
        # Of a dma-buf region the remote address is the offset, not the CUDA address.
        return region, self._address + offset if self._dmabuf is None else offset

    def line(self, front_end: int) -> np.ndarray:
        return self._read(self.map.starts[at.FE_PORT] + front_end * at.FE_WORDS, at.FE_WORDS)

    def fence(self, front_end: int) -> int:
        return int(self._read(self.map.starts[at.FE_FENCE] + front_end * at.FE_WORDS + at.F_FENCE, 1)[0])

    def local_holder_gone(self, front_end: int) -> bool:
        return holder_ended(lambda: self.line(front_end))

    def declare_dead(self, front_end: int) -> int:
        return self._dma.declare_dead(front_end)

    def _read(self, start: int, words: int) -> np.ndarray:
        batch = Operations(1)
        batch.add(READ, start, 0, words)
        self._dma.post(batch)
        self._dma.complete()
        return self._staging[:words].copy()
