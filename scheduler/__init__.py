"""The persistent scheduler: one turn of it, the loops around it, the policies it asks.

`turn` reads as the paper's loop and is the same source on every target. Its parts: `claim`
(scan, compare-and-swap, ticket), `ending` (cancel, deadline, death), `collect` (a step's
tokens), `seats`, `blocks`, `admit`, `choose` (prefill or decode, staging, launch), `publish`.
`state` is the memory that outlives every instance, `recovery` what happens after a fault,
`swap` the change of policy while it runs. `loops` has the outermost loop of each target,
`simulator` the one on a virtual clock. `policy`, `policies`, `view` are for those who write one.
"""

from scheduler.build import CpuLoop, combine, cpu_loop, set_up
from scheduler.policies import find, shipped
from scheduler.policy import FCFS, Policy, PolicyError, policy
from scheduler.recovery import abandon, adopt
from scheduler.state import SchedulerState, make_state, state_view
from scheduler.turn import turn

__all__ = [
    "FCFS",
    "CpuLoop",
    "Policy",
    "PolicyError",
    "SchedulerState",
    "abandon",
    "adopt",
    "combine",
    "cpu_loop",
    "find",
    "make_state",
    "policy",
    "set_up",
    "shipped",
    "state_view",
    "turn",
]
