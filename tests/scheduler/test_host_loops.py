"""The loops of a scheduler on the host, compiled: the CPU's decisions, and how far they run ahead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings", reason="needs the CUDA bindings")

DECISIONS = Path(__file__).parents[1] / "gpu" / "data" / "decisions.json"
LOOPS = ("host", "host-pipelined")
DEADLINE_S = 280.0

pytestmark = pytest.mark.timeout(DEADLINE_S + 20.0, method="thread")


@pytest.fixture(scope="module")
def found() -> dict:
    """What each loop did; in a process of its own, where a stand-in has the driver's names."""
    command = [sys.executable, "-m", "tests.scheduler.host_loops", *LOOPS]
    outcome = subprocess.run(command, stdout=subprocess.PIPE, timeout=DEADLINE_S)
    assert outcome.returncode == 0
    return json.loads(outcome.stdout)


@pytest.mark.parametrize("loop", LOOPS)
def test_decisions_are_the_cpus(found, loop):
    expected = json.loads(DECISIONS.read_text())
    for number, (here, there) in enumerate(zip(found[loop]["decisions"], expected)):
        assert here == there, f"decision {number}"
    assert len(found[loop]["decisions"]) == len(expected)


def test_answers_are_equal(found):
    assert found["host"]["answers"] == found["host-pipelined"]["answers"]
    assert all(found["host"]["answers"])


def test_one_step_is_launched_behind_the_one_in_flight_and_no_more(found):
    assert [found[loop]["most_in_flight"] for loop in LOOPS] == [1, 2]
