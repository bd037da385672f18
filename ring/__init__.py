"""The shared buffer between front ends, the host and the scheduler, and the protocol on it.

`layout` says where every word is and who writes it, `words` how a word is packed, `states`
which transitions are legal. `views` and `sections` find the parts of a buffer from its own
head. `atomics` is the only file that knows memory ordering, for CPU, GPU and plain Python.
`memory` keeps a ring in a file of ``/dev/shm``; `recorder` is the flight recorder in it.
`jit` is the compiler as protocol code uses it, `python_copy` the same sources uncompiled.

Knows no other package of the project.
"""

from ring.layout import RingGeometry
from ring.memory import RingError, RingMemory
from ring.recorder import Entry, Event, entries
from ring.sections import BufferError
from ring.states import EDGES, Reason, State, is_legal
from ring.views import RingView, check_ring, format_ring, host_view

__all__ = [
    "EDGES",
    "BufferError",
    "Entry",
    "Event",
    "Reason",
    "RingError",
    "RingGeometry",
    "RingMemory",
    "RingView",
    "State",
    "check_ring",
    "entries",
    "format_ring",
    "host_view",
    "is_legal",
]
