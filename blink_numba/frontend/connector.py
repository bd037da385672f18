"""How a front end reaches the engine's ring."""

from __future__ import annotations

from typing import Protocol

from rdma.port import FrontEndPort
from rdma.shm import ShmTransport
from ring.memory import RingMemory


class Connector(Protocol):
    """How to reach the engine's ring."""

    def connect(self) -> FrontEndPort:
        """A port; raises `RingError`, `AttachError` or `TransportError` while there is no ring."""
        ...

    def engine_alive(self) -> bool:
        """False where the engine's process is known to have ended."""
        ...

    def replaced(self) -> bool:
        """Whether the ring that `connect` found is no longer the one under its name."""
        ...


class ShmConnector:
    """Reaches a ring in this machine's shared memory.

    Parameters
    ----------
    name : str
        Of the ring.
    front_end : int
    """

    def __init__(self, name: str, front_end: int = 0) -> None:
        self._name, self._front_end = name, front_end
        self._memory: RingMemory | None = None
        self._inode = 0

    def connect(self) -> FrontEndPort:
        memory = RingMemory.attach(self._name)
        self._memory, self._inode = memory, memory.path.stat().st_ino
        # A predecessor's place is only taken once its process is known to have ended.
        port = FrontEndPort(ShmTransport(memory), self._front_end, takeover=True)
        port.warm_up()
        return port

    def engine_alive(self) -> bool:
        return self._memory is not None and self._memory.owner_alive()

    def replaced(self) -> bool:
        try:
            return self._memory is None or self._memory.path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True
