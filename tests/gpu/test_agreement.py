"""The kernel on the GPU decides what the compiled step and plain Python decide from the same arrivals."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from blink_numba import lab
from blink_numba.bench.resident import SideBySide
from blink_numba.lab.agreement import decisions
from blink_numba.lab.live import run_live
from blink_numba.runtime import EngineConfig
from ring.python_copy import PythonCopy
from scheduler.policies import SHIPPED, find

pytestmark = pytest.mark.timeout(300, method="thread")  # all kernels are compiled side by side
OWN = "tests.lab.own_policy:OWN"
POLICIES = [*SHIPPED, OWN]
LENGTHS = lab.lognormal(40, 30, longest=240)


@pytest.fixture(scope="module")
def engines() -> Iterator[SideBySide]:
    def config(name: str) -> EngineConfig:
        return EngineConfig(
            model="tiny", backend="cuda", ring_name=f"agree-{os.getpid()}", slots=64, max_seats=4,
            kv_tokens=1024, max_model_len=256, policy=name,
        )  # fmt: skip

    with SideBySide({name: config(name) for name in POLICIES}) as prepared:
        yield prepared


@pytest.mark.parametrize("name", POLICIES)
def test_gpu_decides_as_the_simulator_and_plain_python(engines: SideBySide, name: str) -> None:
    with engines.running(name) as engine:
        asked = lab.gamma(500.0, 150, 2.0, LENGTHS, seed=3, tenants=3, priorities=3)
        measured = run_live(engine.ring_name, asked, vocab_size=200, whole=True)
        spec = engine.spec
        geometry = engine.config.geometry(spec.max_model_len)
    assert (measured.done > 0).all()
    assert len(measured.recording) > 300
    found = decisions(measured, spec, geometry, find(name))
    assert found is None, f"compiled: {found}"
    plain = PythonCopy(f"gpu_agreement_{abs(hash(name))}")
    found = decisions(measured, spec, geometry, find(name), plain=plain)
    assert found is None, f"plain: {found}"
