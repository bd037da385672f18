"""Policies swapped while the scheduler is resident: among those preloaded, and to one it must load."""

from __future__ import annotations

import os
import threading
import time

import pytest

from blink_numba import lab
from blink_numba.lab.live import run_live
from blink_numba.runtime import EngineConfig, LocalEngine
from blink_numba.runtime.process import wait_for
from ring.recorder import Event
from scheduler.policy_desk import ask_for, current, last_pause_ns

pytestmark = pytest.mark.timeout(240, method="thread")  # a swap to another one compiles a kernel
RING = f"swap-{os.getpid()}"
LENGTHS = lab.lognormal(40, 30, longest=240)
DEADLINE_S = 120.0


def test_swaps_lose_no_request_and_answer_none_twice(record_property) -> None:
    config = EngineConfig(model="tiny", backend="cuda", ring_name=RING, slots=64, max_seats=4, kv_tokens=1024,
                          max_model_len=256, policy="fcfs", preload=("srpt", "vtc"))  # fmt: skip
    asked = lab.poisson(200.0, 400, LENGTHS, seed=2, tenants=3, priorities=3)
    took: dict[str, list[float]] = {"preloaded": [], "loaded": []}
    with LocalEngine(config) as engine:
        view = engine.ring.view

        def swap() -> None:
            for name in ("srpt", "vtc", "fcfs", "srpt"):
                took["preloaded"].append(ask_for(view, name, deadline_s=DEADLINE_S))
                assert current(view) == name
                time.sleep(0.05)
            took["loaded"].append(ask_for(view, "tests.lab.own_policy:OWN", deadline_s=DEADLINE_S))
            assert current(view) == "own"

        swapper = threading.Thread(target=swap)
        swapper.start()
        seen = [run_live(RING, asked, vocab_size=200)]
        while swapper.is_alive():  # requests are in service while a policy is compiled, and when it comes
            seen.append(run_live(RING, asked, vocab_size=200))
        assert wait_for(lambda: last_pause_ns(view) > 0, DEADLINE_S)
        pause_ns = last_pause_ns(view)
    assert len(took["loaded"]) == 1, "each swap was served"
    for run in seen:
        finished = [e for e in run.recording if e.event == Event.FINISH]
        assert sorted(e.arguments[2] for e in finished) == sorted(run.requests.output.tolist())
    for kind, seconds in took.items():
        record_property(kind, max(seconds))
        print(f"stood still for {pause_ns / 1e6:.1f} ms; {kind}: in force after {max(seconds):.4f} s at most")
