"""Priority classes with aging: a smaller number goes first, and waiting makes every class better.

Aging as in time-sharing systems (Kleinrock, Queueing Systems II, 1976, on time-dependent
priorities): each class is a fixed handicap in time, so class ``p`` waits at most ``p`` handicaps
longer than class 0 that arrives with it, whatever the load of the classes before it.
"""

from __future__ import annotations

from ring.jit import uncounted
from scheduler.policy import policy
from scheduler.view import arrived_ns, parameter, priority

CLASS_NS = 0  # how much later a request counts as arrived for each class below the best


@uncounted
def arrival_with_handicap(view, request):
    """Arrival plus the handicap of its class."""
    return arrived_ns(view, request) + priority(view, request) * parameter(view, CLASS_NS)


POLICY = policy(name="priority", key=arrival_with_handicap, parameters={"class_ns": 5_000_000_000})
