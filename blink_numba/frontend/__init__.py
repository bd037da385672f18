"""The front end: an OpenAI-compatible server in a process of its own.

It reaches the ring only through `rdma.port.FrontEndPort`. `link` owns the port in a progress
thread and hands batches of events to the event loop; `calls` follows the answers of one HTTP
request; `encode` writes chunks; `schema` and `errors` are the API's surface; `guard` keeps
hostile clients out; `metrics` counts; `app` puts it together; ``python -m
blink_numba.frontend`` runs it.
"""

from blink_numba.frontend.settings import FrontEndSettings

__all__ = ["FrontEndSettings"]
