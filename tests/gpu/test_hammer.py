"""Contended claims: many blocks race for every slot; the host submits, cancels, dies, is replaced."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("cuda.bindings", reason="needs the CUDA bindings")

DEADLINE_S = 300.0

pytestmark = pytest.mark.timeout(DEADLINE_S + 20.0, method="thread")


def test_each_claim_is_won_exactly_once():
    # in a process of its own, which a kernel that hangs takes down
    program = (
        "import json\n"
        "from blink_numba.bench.hammer import run\n"
        "print(json.dumps({row.case: row.value for row in run()}))\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=DEADLINE_S, text=True
    )
    assert outcome.returncode == 0
    found = json.loads(outcome.stdout.splitlines()[-1])
    assert found["device_claims"] >= 100_000_000
    assert found["device_contenders_per_claim"] > 1.0
    assert found["device_violations"] == found["host_violations"] == 0.0
    assert found["host_claims"] >= found["host_finished"] > 0
