"""All launch strategies make the CPU's decisions and give the same answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings", reason="needs the CUDA bindings")

STRATEGIES = ("faf", "tail", "while", "host", "host-pipelined")
DECISIONS = Path(__file__).parent / "data" / "decisions.json"
DEADLINE_S = 200.0

pytestmark = pytest.mark.timeout(DEADLINE_S + 20.0, method="thread")


@pytest.fixture(scope="module")
def found() -> dict:
    """What each strategy did; in a process of its own, which a kernel that hangs takes down."""
    command = [sys.executable, "-m", "tests.gpu.strategies", *STRATEGIES]
    outcome = subprocess.run(command, stdout=subprocess.PIPE, timeout=DEADLINE_S)
    assert outcome.returncode == 0
    return json.loads(outcome.stdout)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_decisions_are_the_cpus(found, strategy):
    expected = json.loads(DECISIONS.read_text())
    for number, (here, there) in enumerate(zip(found[strategy]["decisions"], expected)):
        assert here == there, f"decision {number}"
    assert len(found[strategy]["decisions"]) == len(expected)


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_answers_are_equal(found, strategy):
    assert found[strategy]["answers"] == found["faf"]["answers"]
    assert all(found["faf"]["answers"])
