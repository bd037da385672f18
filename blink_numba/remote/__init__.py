"""An engine on one host, its front ends on others: the two commands' functions.

`run_engine` starts an engine and, with verbs, admits front ends over RDMA; `run_front_end`
serves HTTP on a host that reaches the engine's ring through one-sided reads and writes alone.
"""

from __future__ import annotations

from blink_numba.remote.engine import run_engine
from blink_numba.remote.frontend import VerbsConnector, parse_address, run_front_end
from blink_numba.remote.keys import shared_key

__all__ = ["VerbsConnector", "parse_address", "run_engine", "run_front_end", "shared_key"]
