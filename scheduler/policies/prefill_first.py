"""Prefill first: whoever has a seat gets its prompt done before anybody decodes on.

The rule of Orca and of vLLM before chunked prefill (Kwon et al., SOSP 2023): the best time to
the first token, paid for with stalls between the others. First come, first served follows it
too; this one states it, to be named beside `decode_first` in a comparison.
"""

from __future__ import annotations

from ring.jit import uncounted
from scheduler.policy import RUN_PREFILL, policy


@uncounted
def always_prefill(view):
    """Prefill."""
    return RUN_PREFILL


POLICY = policy(name="prefill-first", prefill_or_decode=always_prefill, bound=1.0)
