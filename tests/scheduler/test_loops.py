"""The compiled loop of the CPU: one for all policies."""

from __future__ import annotations

from scheduler.build import _compiled_run, cpu_loop
from scheduler.policies import find


def test_policies_share_one_compiled_loop():
    for name in ("fcfs", "sjf"):
        cpu_loop(find(name)).compile()
    loop = _compiled_run()
    assert len(loop.signatures) == 1
    assert len(loop.overloads) == 1
