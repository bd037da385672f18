"""First come, first served, with the paper's inline prefill: the default.

Iteration-level batching in order of arrival (Orca: Yu et al., OSDI 2022), on purpose in the
Blink paper: nobody is overtaken, so nobody starves, and the prefill of a new request pauses
the decode for one graph.
"""

from __future__ import annotations

from scheduler.policy import FCFS

POLICY = FCFS
