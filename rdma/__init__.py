"""One-sided access to a ring, and the front end's half of the slot protocol.

A front end reaches the ring only through a `Transport`: batches of reads and writes, posted
and completed. `FrontEndPort` is what a server uses: it keeps the book of its own slots
(`slots`) and of its share of the token arena (`arena`), writes bursts of requests in the
protocol's order (`submit`), and reads answers with one control read and one log read a poll
(`reader`). `attach` and `fencing` are the handshake after a front end's death.
Transports: `shm` for a front end on the engine's host, `dma` for one in the process that owns
the GPU, `verbs` for one on another host. The last two are imported only when asked for.

Imports only `ring`.
"""

from rdma.errors import (
    ArenaFull,
    AttachError,
    BadParameter,
    FrontEndHeld,
    PromptTooLong,
    RingFull,
    SubmitError,
)
from rdma.fencing import declare_dead, wait_drained
from rdma.port import Event, FrontEndPort, Handle
from rdma.shm import ShmTransport
from rdma.status import SchedulerStatus
from rdma.submit import Request
from rdma.transport import Fenced, RingMap, Transport, TransportError, TransportLost

__all__ = [
    "ArenaFull",
    "AttachError",
    "BadParameter",
    "Event",
    "Fenced",
    "FrontEndHeld",
    "FrontEndPort",
    "Handle",
    "PromptTooLong",
    "Request",
    "RingFull",
    "RingMap",
    "SchedulerStatus",
    "ShmTransport",
    "SubmitError",
    "Transport",
    "TransportError",
    "TransportLost",
    "declare_dead",
    "wait_drained",
]
