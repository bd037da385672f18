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
DEADLINE_S = 120.0

pytestmark = pytest.mark.timeout(2 * DEADLINE_S + 20.0, method="thread")


@pytest.fixture(scope="module")
def found() -> dict:
    """What each strategy did; in processes of their own, which a kernel that hangs takes down."""
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.strategies", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in STRATEGIES
    }  # fmt: skip
    try:
        prepared = {name: process.stdout.readline() for name, process in running.items() if process.stdout}
        assert set(prepared.values()) == {"prepared\n"}, prepared
        told = {
            name: process.communicate("run\n", timeout=DEADLINE_S)[0] for name, process in running.items()
        }
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    assert all(told.values()), {name: process.returncode for name, process in running.items()}
    return {name: json.loads(text) for name, text in told.items()}


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
