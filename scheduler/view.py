"""What a policy may ask of the scheduler: small questions, one word of memory each.

A policy's functions take ``(view, request)``: `view` is `scheduler.state.SchedulerState`,
`request` the slot of a request that waits or is in service. All answers are int64; times are
nanoseconds on the scheduler's clock. These are the only words a policy should read.
"""

from __future__ import annotations

from ring.jit import uncounted
from scheduler import state as sc

FOREVER = sc.NEVER  # a deadline that does not come


# --- of one request ---


@uncounted
def ticket(view, request):
    """Its number in the order of arrival."""
    return view.slots[request * sc.SLOT_WORDS + sc.SL_TICKET]


@uncounted
def prompt_tokens(view, request):
    """Tokens of its prompt."""
    return view.slots[request * sc.SLOT_WORDS + sc.SL_PROMPT_LEN]


@uncounted
def max_tokens(view, request):
    """Most tokens its answer may have: what the scheduler knows of its size."""
    return view.slots[request * sc.SLOT_WORDS + sc.SL_MAX_TOKENS]


@uncounted
def generated(view, request):
    """Tokens of its answer so far."""
    seat = view.slots[request * sc.SLOT_WORDS + sc.SL_SEAT]
    if seat >= 0:
        return view.seats[seat * sc.SEAT_WORDS + sc.SE_GENERATED]
    return view.slots[request * sc.SLOT_WORDS + sc.SL_GENERATED]


@uncounted
def remaining(view, request):
    """Tokens of its answer still to come, at most."""
    return max_tokens(view, request) - generated(view, request)


@uncounted
def arrived_ns(view, request):
    """When the scheduler first saw it."""
    return view.slots[request * sc.SLOT_WORDS + sc.SL_ARRIVED]


@uncounted
def since_ns(view, request):
    """Since when it waits, or is in service: the last of arrival, seating and preemption."""
    return view.slots[request * sc.SLOT_WORDS + sc.SL_SINCE]


@uncounted
def deadline_ns(view, request):
    """When it must be done; `FOREVER` without a deadline."""
    return view.slots[request * sc.SLOT_WORDS + sc.SL_DEADLINE]


@uncounted
def priority(view, request):
    """The number its client gave; what it means is the policy's."""
    return view.slots[request * sc.SLOT_WORDS + sc.SL_PRIORITY]


@uncounted
def tenant(view, request):
    """Whose it is, folded to 0 … TENANTS-1."""
    return view.slots[request * sc.SLOT_WORDS + sc.SL_TENANT] % sc.TENANTS


@uncounted
def in_service(view, request):
    """Whether it has a seat."""
    return view.slots[request * sc.SLOT_WORDS + sc.SL_SEAT] >= 0


# --- of the whole ---


@uncounted
def now_ns(view):
    """The time of this turn."""
    return view.core[sc.K_NOW]


@uncounted
def waiting(view):
    """Requests without a seat."""
    return view.core[sc.K_WAITING]


@uncounted
def seated(view):
    """Requests in service."""
    return view.core[sc.K_SEATED]


@uncounted
def decoding(view):
    """Requests in service whose prompt is done."""
    return view.core[sc.K_DECODING]


@uncounted
def seats_free(view):
    """Seats nobody holds."""
    return view.core[sc.K_SEATS_FREE]


@uncounted
def blocks_free(view):
    """KV blocks nobody holds."""
    return view.core[sc.K_BLOCKS_FREE]


@uncounted
def oldest_prefill_ns(view):
    """Since when the seat that waits longest for its prefill has it; `FOREVER` if none does."""
    oldest = FOREVER
    for seat in range(view.config[sc.G_SEATS]):
        here = seat * sc.SEAT_WORDS
        slot = view.seats[here + sc.SE_SLOT]
        if slot != sc.NO_SLOT and view.seats[here + sc.SE_COMPUTED] < view.seats[here + sc.SE_TARGET]:
            oldest = min(oldest, since_ns(view, slot))
    return oldest


# --- of the policy itself ---


@uncounted
def parameter(view, index):
    """Parameter `index` (0 … PARAMETERS-1) of the policy, in the order it declares them."""
    return view.policy[sc.P_PARAMETERS + index % sc.PARAMETERS]


@uncounted
def recall(view, index):
    """Word `index` of the policy's memory, folded to 0 … MEMORY-1; zero when it comes into force."""
    return view.policy[sc.P_MEMORY + index % sc.MEMORY]


@uncounted
def remember(view, index, value):
    """Set a word of the policy's memory. In `may_admit` only: the rest runs on many lanes at once."""
    view.policy[sc.P_MEMORY + index % sc.MEMORY] = value


@uncounted
def tokens_of_tenant(view, who):
    """Tokens generated for a tenant since the policy came into force; it must ask for accounting."""
    return view.policy[sc.P_ACCOUNTS + who % sc.TENANTS]
