"""Real verbs, in a guest with soft-RoCE: the wire's scenarios and serving end to end.

Skipped where the guest is not built; with ``BLINK_REQUIRE_RDMA=1`` it is built, and whatever
is missing is a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ring.jit import cache_home
from tests.rdma.guest import machine, serve_scenarios, wire_scenarios
from tests.rdma.guest.compile_ahead import PROCESSOR

DEADLINE_S = 900.0  # for a very busy machine: alone it takes far less
SCENARIOS = [
    scenario.__name__ for module in (wire_scenarios, serve_scenarios) for scenario in module.SCENARIOS
]

# All at once: this machine compiles what serving needs while it builds the guest, and while the guest
# is at the wire's scenarios.
_SCRIPT = """
$PYTHON -m tests.rdma.guest.run tests.rdma.guest.serve_scenarios /run/task/serve /run/task/compiled &
NUMBA_DISABLE_JIT=1 $PYTHON -m tests.rdma.guest.run tests.rdma.guest.wire_scenarios /run/task/wire
wait
"""


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(2 * DEADLINE_S)
def test_every_scenario_passes_over_real_verbs(capsys):
    # One test for all: split among workers, each would boot a guest of its own.
    if not machine.REQUIRED:
        try:
            machine.ensure_built()
        except machine.GuestMissing as missing:
            pytest.skip(str(missing))
    results = _run_guest()
    with capsys.disabled():
        for result in results.values():
            print(f"  {'FAILED' if result['error'] else 'passed'} {result['scenario']} {result['seconds']} s")
    failures = [f"{name}:\n{result['error']}" for name, result in results.items() if result["error"]]
    assert not failures, "\n\n".join(failures)
    assert list(results) == SCENARIOS, "the guest ended early"


def _run_guest() -> dict[str, dict]:
    """What the guest reports of each scenario."""
    cache = cache_home() / "rdma-guest-jit"
    cache.mkdir(parents=True, exist_ok=True)
    environment = PROCESSOR | {"BLINK_NUMBA_CACHE": str(cache)}
    compiling = subprocess.Popen(
        [sys.executable, "-m", "tests.rdma.guest.compile_ahead"],
        cwd=machine.PROJECT, env=os.environ | environment,
    )  # fmt: skip
    try:
        guest = machine.Guest(_SCRIPT, environment, [cache])
    except BaseException:
        _end(compiling)
        raise
    try:
        assert compiling.wait(DEADLINE_S) == 0, "what serving needs was not compiled"
        (guest.work / "compiled").touch()
        guest.wait(DEADLINE_S)
        reports = "".join(path.read_text() for path in (guest.work / "wire", guest.work / "serve"))
        results = {found["scenario"]: found for found in map(json.loads, reports.splitlines())}
        if any(result["error"] for result in results.values()):
            print(guest.console())  # what the scenarios' child processes said
        return results
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        raise AssertionError(f"{error}\n{guest.console()}") from error
    finally:
        _end(compiling)
        guest.close()


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
