"""Least remaining first: the shortest rest of an answer, preempting longer ones.

Schrage ("A proof of the optimality of the shortest remaining processing time discipline",
Operations Research, 1968). What is preempted is recomputed, so a waiting request must be
shorter by a margin that is worth a prefill; and as in `shortest_job` size is a handicap in
time, so that long requests do not starve.
"""

from __future__ import annotations

from ring.jit import uncounted
from scheduler.policy import policy
from scheduler.view import arrived_ns, parameter, remaining

TOKEN_NS = 0  # how much later a request counts as arrived for each token it still needs


@uncounted
def finish_if_served_now(view, request):
    """Arrival plus what remains of it, in time."""
    return arrived_ns(view, request) + remaining(view, request) * parameter(view, TOKEN_NS)


POLICY = policy(
    name="srpt",
    key=finish_if_served_now,
    parameters={"token_ns": 20_000_000},
    preempts=True,
    margin=256 * 20_000_000,  # 256 tokens: a preempted request of a thousand costs about half of that again
)
