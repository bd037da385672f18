"""RDMA verbs: a ring on one host, its front ends on others.

`RingHost` runs beside the engine: it admits front ends over an authenticated TCP connection
and registers memory for them (`grants`); `VerbsTransport` is the front end's side. Only
one-sided READ and WRITE of reliable connections are used. `provider` is the seam to the verbs
library, `wire` the bootstrap's protocol.

Nothing here is imported unless it is asked for: front ends on the engine's host need no verbs.
"""

from rdma.verbs.host import RingHost, bind_listener
from rdma.verbs.provider import VerbsUnavailable, open_device
from rdma.verbs.transport import VerbsTransport
from rdma.verbs.wire import KEY_VARIABLE, Refused

__all__ = [
    "KEY_VARIABLE", "Refused", "RingHost", "VerbsTransport", "VerbsUnavailable", "bind_listener",
    "open_device",
]  # fmt: skip
