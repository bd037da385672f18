"""Multi-level feedback with skip-join: who has had little goes first; long prompts join lower.

FastServe (Wu et al., "Fast distributed inference serving for large language models", 2023):
sizes are unknown, so a request falls a level whenever it has used up a quantum, each twice the
one above; since a prefill is a known first quantum, a request joins at the level that holds
its prompt. What has waited long enough rises to the top, so none starves.
"""

from __future__ import annotations

from ring.jit import uncounted
from scheduler.policy import policy
from scheduler.view import generated, in_service, now_ns, parameter, prompt_tokens, since_ns

QUANTUM, PROMPT_SHARE, PROMOTE_NS = 0, 1, 2  # parameters
LEVELS = 16


@uncounted
def level(view, request):
    """0 for the top queue; a request's work in tokens decides."""
    work = generated(view, request) + prompt_tokens(view, request) // parameter(view, PROMPT_SHARE)
    quantum, depth = parameter(view, QUANTUM), 0
    while work >= quantum and depth < LEVELS:
        work -= quantum
        quantum *= 2
        depth += 1
    return depth


@uncounted
def level_unless_waited(view, request):
    """Its level; above all others once it has waited too long."""
    waited = now_ns(view) - since_ns(view, request)
    if not in_service(view, request) and waited > parameter(view, PROMOTE_NS):
        return -1
    return level(view, request)


POLICY = policy(
    name="mlfq",
    key=level_unless_waited,
    victim=level,
    parameters={"quantum": 64, "prompt_share": 16, "promote_ns": 10_000_000_000},
    preempts=True,
    margin=2,
)
