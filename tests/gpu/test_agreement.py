"""The kernel on the GPU decides what the compiled step and plain Python decide from the same arrivals."""

from __future__ import annotations

import os

import pytest

from blink_numba import lab
from blink_numba.lab.agreement import decisions
from blink_numba.lab.live import run_live
from blink_numba.runtime import EngineConfig, LocalEngine
from ring.python_copy import PythonCopy
from scheduler.policies import SHIPPED, find

pytestmark = pytest.mark.timeout(240, method="thread")  # each engine compiles its kernel
OWN = "tests.lab.own_policy:OWN"
LENGTHS = lab.lognormal(40, 30, longest=240)


@pytest.mark.parametrize("name", [*SHIPPED, OWN])
def test_gpu_decides_as_the_simulator_and_plain_python(name: str) -> None:
    ring = f"agree-{os.getpid()}"
    config = EngineConfig(model="tiny", backend="cuda", ring_name=ring, slots=64, max_seats=4, kv_tokens=1024,
                          max_model_len=256, policy=name)  # fmt: skip
    with LocalEngine(config) as engine:
        asked = lab.gamma(500.0, 150, 2.0, LENGTHS, seed=3, tenants=3, priorities=3)
        measured = run_live(ring, asked, vocab_size=200, whole=True)
        geometry, spec = engine.ring.geometry, engine.spec
    assert (measured.done > 0).all()
    assert len(measured.recording) > 300
    found = decisions(measured, spec, geometry, find(name))
    assert found is None, f"compiled: {found}"
    plain = PythonCopy(f"gpu_agreement_{abs(hash(name))}")
    found = decisions(measured, spec, geometry, find(name), plain=plain)
    assert found is None, f"plain: {found}"
