"""Verbs without a device: queue pairs of this process that copy memory, and fail when told to.

Protection is real (keys, bounds, access, protection domains), and so are the states of a queue
pair: what a NIC would refuse is refused here with the same status, after which the queue only
flushes. `Fabric.fail` breaks a chain off with any status in the middle.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from rdma.verbs.provider import (
    WC_FLUSHED,
    WC_REMOTE_ACCESS,
    WC_RETRY_EXCEEDED,
    WC_SUCCESS,
    OneSided,
    QueueAddress,
    VerbsUnavailable,
)

GID = "0000:0000:0000:0000:0000:ffff:7f00:0001"


@dataclass(eq=False)
class FakeRegion:
    """Registered memory."""

    device: FakeDevice
    address: int
    length: int
    remote_read: bool
    remote_write: bool
    lkey: int = 0
    rkey: int = 0

    def close(self) -> None:
        self.device.fabric.regions.pop(self.rkey, None)


@dataclass(eq=False)
class FakeDevice:
    """A device with a protection domain of its own."""

    fabric: Fabric
    name: str = "fake0"

    def register(self, address: int, length: int, *, remote_read: bool, remote_write: bool) -> FakeRegion:
        region = FakeRegion(self, address, length, remote_read, remote_write)
        region.lkey = region.rkey = next(self.fabric.numbers)
        self.fabric.regions[region.rkey] = region
        return region

    def register_gpu(self, *arguments: object, **options: object) -> FakeRegion:
        raise VerbsUnavailable("no GPU here")

    def queue_pair(self, depth: int) -> FakeQueuePair:
        return FakeQueuePair(self, depth)

    def close(self) -> None:
        self.fabric.devices.discard(self)


class FakeQueuePair:
    """A reliable connection; a chain is over when `post` returns."""

    def __init__(self, device: FakeDevice, depth: int) -> None:
        self.device, self.depth, self.peer = device, depth, 0
        self.address = QueueAddress(next(device.fabric.numbers), 0, GID, 0, 3)
        self.broken = False
        self._completions: list[tuple[int, int]] = []
        device.fabric.queues[self.address.qpn] = self

    def connect(self, peer: QueueAddress) -> None:
        self.peer = peer.qpn

    def post(self, chain: list[OneSided], lkey: int, number: int) -> None:
        fabric = self.device.fabric
        assert len(chain) <= self.depth
        status = WC_FLUSHED if self.broken else fabric.fail(self)
        with fabric.lock:
            done = len(chain) // 2 if status else len(chain)
            for operation in chain[: 0 if self.broken else done]:
                if refused := self._run(operation, lkey):
                    status = refused
                    break
            if status:
                self.broken = True
                self._completions += [(number, status), (number, WC_FLUSHED)]
            else:
                self._completions.append((number, WC_SUCCESS))

    def _run(self, operation: OneSided, lkey: int) -> int:
        fabric = self.device.fabric
        peer = fabric.queues.get(self.peer)
        if peer is None or peer.peer != self.address.qpn or peer.broken:
            return WC_RETRY_EXCEEDED
        mine, theirs = fabric.regions[lkey], fabric.regions.get(operation.rkey)
        assert mine.device is self.device
        assert mine.address <= operation.local
        assert operation.local + operation.length <= mine.address + mine.length
        if theirs is None or theirs.device is not peer.device or not _covers(theirs, operation):
            peer.broken = True
            return WC_REMOTE_ACCESS
        ends = (operation.local, operation.remote)
        ctypes.memmove(*(ends if operation.is_read else ends[::-1]), operation.length)
        return WC_SUCCESS

    def poll(self) -> list[tuple[int, int]]:
        completions, self._completions = self._completions, []
        return completions

    def break_off(self) -> None:
        self.broken = True

    def close(self) -> None:
        with self.device.fabric.lock:
            self.device.fabric.queues.pop(self.address.qpn, None)


def _covers(region: FakeRegion, operation: OneSided) -> bool:
    allowed = region.remote_read if operation.is_read else region.remote_write
    end = region.address + region.length
    return allowed and region.address <= operation.remote and operation.remote + operation.length <= end


@dataclass
class Fabric:
    """What connects the fake devices of a test.

    Attributes
    ----------
    fail : callable
        Asked before each chain with its queue pair; the status to break it off with, or 0.
    """

    fail: Callable[[FakeQueuePair], int] = lambda queue: WC_SUCCESS
    queues: dict[int, FakeQueuePair] = field(default_factory=dict)
    regions: dict[int, FakeRegion] = field(default_factory=dict)
    devices: set[FakeDevice] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock)
    numbers: itertools.count = field(default_factory=lambda: itertools.count(100))

    def open_device(
        self, name: str | None = None, *, gid_index: int | None = None, provider: str | None = None
    ) -> FakeDevice:
        """As `rdma.verbs.provider.open_device`."""
        if name not in (None, "fake0"):
            raise VerbsUnavailable(f"RDMA device {name!r} cannot be opened")
        device = FakeDevice(self)
        self.devices.add(device)
        return device

    def left(self) -> tuple[int, int, int]:
        """Queue pairs, regions and devices that nobody closed."""
        return len(self.queues), len(self.regions), len(self.devices)
