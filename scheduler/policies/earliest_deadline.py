"""Earliest deadline first; a request without a deadline gets one, a long way off.

Liu and Layland ("Scheduling algorithms for multiprogramming in a hard-real-time environment",
JACM 1973): if any order meets all deadlines, this one does. Under overload it favours who is
about to fail; those that passed their deadline are ended by the scheduler itself.
"""

from __future__ import annotations

from ring.jit import uncounted
from scheduler.policy import policy
from scheduler.view import arrived_ns, deadline_ns, parameter

HORIZON_NS = 0  # the deadline of those that have none, from their arrival


@uncounted
def due(view, request):
    """When it must be done."""
    return min(deadline_ns(view, request), arrived_ns(view, request) + parameter(view, HORIZON_NS))


POLICY = policy(name="edf", key=due, parameters={"horizon_ns": 60_000_000_000})
