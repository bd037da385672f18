"""Decode first: a batch decodes undisturbed, and prompts wait, up to a limit.

The opposite of the inline prefill, as FasterTransformer batches by request (see Agrawal et al.,
"Taming the throughput–latency tradeoff in LLM inference with Sarathi-Serve", OSDI 2024, on
decode-prioritizing schedulers): no stall between tokens, a long wait for the first one. The
limit keeps that wait bounded.
"""

from __future__ import annotations

from ring.jit import uncounted
from scheduler.policy import RUN_DECODE, RUN_PREFILL, policy
from scheduler.view import now_ns, oldest_prefill_ns, parameter

PATIENCE_NS = 0  # how long a seated prompt waits while others decode


@uncounted
def decode_unless_late(view):
    """Decode, unless a prompt has waited too long on its seat."""
    if now_ns(view) - oldest_prefill_ns(view) > parameter(view, PATIENCE_NS):
        return RUN_PREFILL
    return RUN_DECODE


POLICY = policy(
    name="decode-first",
    prefill_or_decode=decode_unless_late,
    parameters={"patience_ns": 200_000_000},
)
