"""Fair share between tenants by virtual token counters.

VTC (Sheng et al., "Fairness in serving large language models", OSDI 2024): the tenant that has
received least service goes first, service being prompt tokens and, weighted, generated ones. A
tenant that was idle must not have saved up credit: its counter is lifted to the one at which the
last admission was made, as start-time fair queueing does (Goyal, Vin and Cheng, 1996).
"""

from __future__ import annotations

from ring.jit import uncounted
from scheduler.policy import policy
from scheduler.state import TENANTS
from scheduler.view import parameter, prompt_tokens, recall, remember, tenant, tokens_of_tenant

INPUT_WEIGHT, OUTPUT_WEIGHT = 0, 1  # parameters
VIRTUAL_TIME = TENANTS  # word of memory, after a word of charges for each tenant


@uncounted
def service(view, request):
    """What its tenant has received, lifted to the virtual time."""
    who = tenant(view, request)
    received = recall(view, who) + parameter(view, OUTPUT_WEIGHT) * tokens_of_tenant(view, who)
    return max(received, recall(view, VIRTUAL_TIME))


@uncounted
def charge(view, request):
    """Move the virtual time to this admission and charge the prompt to its tenant."""
    who, start = tenant(view, request), service(view, request)
    generated = parameter(view, OUTPUT_WEIGHT) * tokens_of_tenant(view, who)
    remember(view, VIRTUAL_TIME, start)
    remember(view, who, start + parameter(view, INPUT_WEIGHT) * prompt_tokens(view, request) - generated)
    return True


POLICY = policy(
    name="vtc",
    key=service,
    may_admit=charge,
    parameters={"input_weight": 1, "output_weight": 2},
    accounting=True,
)
