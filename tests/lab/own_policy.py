"""A policy that is not in the package: it must run wherever those that are do."""

from __future__ import annotations

from numba import njit

from scheduler.policy import policy
from scheduler.view import (
    arrived_ns,
    generated,
    max_tokens,
    parameter,
    prompt_tokens,
    recall,
    remember,
    tenant,
)

PROMPT_NS, OUTPUT_NS = 0, 1


@njit
def weighted(tokens, nanoseconds):
    """A helper of the policy's own."""
    return tokens * nanoseconds


def work(view, request):
    """Arrival, plus its size in time, less what is done; turns between tenants."""
    size = weighted(prompt_tokens(view, request), parameter(view, PROMPT_NS))
    size += weighted(max_tokens(view, request) - generated(view, request), parameter(view, OUTPUT_NS))
    return arrived_ns(view, request) + size + recall(view, tenant(view, request)) * 1_000


def count_tenant(view, request):
    """Remember how often each tenant was admitted."""
    who = tenant(view, request)
    remember(view, who, recall(view, who) + 1)
    return True


OWN = policy(
    name="own", key=work, may_admit=count_tenant, parameters={"prompt_ns": 10_000, "output_ns": 50_000},
    preempts=True, margin=100_000,
)  # fmt: skip
