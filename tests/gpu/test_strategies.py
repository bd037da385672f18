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
    for run in found[strategy]:
        for number, (here, there) in enumerate(zip(run["decisions"], expected)):
            assert here == there, f"decision {number}"
        assert len(run["decisions"]) == len(expected)


def test_answers_are_equal_in_every_run_of_every_strategy(found):
    """With one order of reduction for all shapes, what is answered depends on the prompt alone."""
    assert all(found["faf"][0]["answers"])
    answers = {
        (strategy, number): run["answers"]
        for strategy in STRATEGIES
        for number, run in enumerate(found[strategy])
    }
    usual = max(answers.values(), key=list(answers.values()).count)
    differing = {which: list(_differences(run, usual)) for which, run in answers.items() if run != usual}
    assert not differing


def _differences(answers, usual):
    """Of each request that was answered otherwise: its number, and the first token that differs."""
    for number, (here, there) in enumerate(zip(answers, usual)):
        if here != there:
            places = [place for place, pair in enumerate(zip(here, there)) if pair[0] != pair[1]]
            yield number, len(here), len(there), places[:5], len(places)
