"""What the GPU's decisions are compared with is what the CPU decides."""

from __future__ import annotations

import json
from pathlib import Path

from blink_numba.runtime.local import make_backend
from tests.decisions import run_scenario, scenario_config

STORED = Path(__file__).parent.parent / "gpu" / "data" / "decisions.json"


def test_stored_decisions_are_the_cpus():
    config = scenario_config("cpu")
    found = run_scenario(make_backend(config, print), config)
    stored = json.loads(STORED.read_text())
    assert found["decisions"] == stored, "scheduling changed: python -m tests.decisions writes them anew"
    assert {name for name, *_ in stored} == {"CLAIM", "ADMIT", "PREFILL", "DECODE", "PREEMPT", "FINISH"}
