"""What a policy is: at most four small functions over read-only views of the scheduler.

=====================  =============================================  ===============================
function               answers                                        default
=====================  =============================================  ===============================
``key``                int64; the smallest is admitted first          0: by ticket, first come
``may_admit``          may this request be seated now?                yes
``prefill_or_decode``  which of the two runs next, when both could?   prefill (pause and resume)
``victim``             key of a seated request; the largest goes      ticket: the last to come
=====================  =============================================  ===============================

All take ``(state, slot)``, but for ``prefill_or_decode(state)``. Keys are int64 on every
target: floating point is fused differently on each, so scores would differ. Ties go by
ticket, so decisions are equal everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ring.jit import njit
from scheduler import state as sc

RUN_PREFILL, RUN_DECODE = 1, 0


@njit
def by_ticket(state, slot):
    """All alike: the ticket decides."""
    return 0


@njit
def always(state, slot):
    """No condition beyond a free seat and blocks."""
    return True


@njit
def prefill_first(state):
    """Pause the decode, run the prefill, resume: the paper's inline prefill."""
    return RUN_PREFILL


@njit
def last_come(state, slot):
    """Preempt the newest."""
    return state.slots[slot * sc.SLOT_WORDS + sc.SL_TICKET]


@dataclass(frozen=True)
class Policy:
    """A scheduling policy by its compiled functions."""

    name: str
    key: Callable = by_ticket
    may_admit: Callable = always
    prefill_or_decode: Callable = prefill_first
    victim: Callable = last_come


FCFS = Policy("fcfs")
