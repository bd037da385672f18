"""Multi-level feedback with skip-join: who has had little goes first; long prompts join lower.

FastServe (Wu et al., "Fast distributed inference serving for large language models", 2023):
sizes are unknown, so a request falls a level whenever it has used up a quantum, each twice the
one above; since a prefill is a known first quantum, a request joins at the level that holds
its prompt. What has waited long enough rises to the top, so none starves.
"""

from __future__ import annotations

from ring.jit import uncounted
from scheduler.policy import policy
from scheduler.view import generated, in_service, now_ns, parameter, prompt_tokens, seats_free, since_ns

QUANTUM, PROMPT_SHARE, PROMOTE_NS, HOLD_NS = 0, 1, 2, 3  # parameters
LEVELS = 16


@uncounted
def level(view, request):
    """0 for the top queue; a request's work in tokens decides."""
    work = generated(view, request) + prompt_tokens(view, request) // parameter(view, PROMPT_SHARE)
    quantum = parameter(view, QUANTUM)
    for depth in range(LEVELS):
        if work < quantum:
            return depth
        work -= quantum
        quantum *= 2
    return LEVELS


@uncounted
def standing(view, request):
    """Its level; above all once it has waited too long, and until its seat has paid for the prefill."""
    spent = now_ns(view) - since_ns(view, request)
    if in_service(view, request):
        return -1 if spent < parameter(view, HOLD_NS) else level(view, request)
    return -1 if spent > parameter(view, PROMOTE_NS) else level(view, request)


@uncounted
def is_new_or_seat_is_free(view, request):
    """Who was preempted takes nobody's seat: else two would recompute each other for ever."""
    return generated(view, request) == 0 or seats_free(view) > 0


POLICY = policy(
    name="mlfq",
    key=standing,
    may_admit=is_new_or_seat_is_free,
    victim=standing,
    parameters={"quantum": 512, "prompt_share": 8, "promote_ns": 10_000_000_000, "hold_ns": 4_000_000_000},
    preempts=True,
    margin=1,
)
