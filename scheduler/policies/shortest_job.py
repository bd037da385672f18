"""Shortest job first, by the size its client declares, with linear aging.

Smith's rule (Naval Research Logistics Quarterly, 1956) minimises the mean waiting time when
sizes are known. An answer's size is not; `max_tokens` bounds it, and a predictor may set it
(Fu et al., "Efficient LLM Scheduling by Learning to Rank", NeurIPS 2024). Its weakness is that
long requests starve; here a request's size is a handicap in time, so it can be overtaken only
by those that arrive within it.
"""

from __future__ import annotations

from ring.jit import uncounted
from scheduler.policy import policy
from scheduler.view import arrived_ns, max_tokens, parameter

TOKEN_NS = 0  # how much later a request counts as arrived for each token of its answer


@uncounted
def finish_if_served_now(view, request):
    """Arrival plus its size in time."""
    return arrived_ns(view, request) + max_tokens(view, request) * parameter(view, TOKEN_NS)


POLICY = policy(name="sjf", key=finish_if_served_now, parameters={"token_ns": 20_000_000})
