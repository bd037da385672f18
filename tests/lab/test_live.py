"""A running engine: its decisions replayed, its policy swapped under load, seen by `top` and `trace`."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import sys
import threading
import time

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from blink_numba import lab
from blink_numba.cli import app
from blink_numba.errors import EngineStartError
from blink_numba.lab.agreement import decisions
from blink_numba.lab.live import Measured, run_live
from blink_numba.policies import load_policy
from blink_numba.runtime import EngineConfig, LocalEngine
from blink_numba.top import Reading, render, slot_states
from blink_numba.trace import frame, perfetto, spans, step_durations
from ring import layout as at
from ring.python_copy import PythonCopy
from ring.recorder import Event
from ring.states import State
from scheduler.policies import SHIPPED, find
from scheduler.policy import PolicyError
from scheduler.policy_desk import PolicyRefused, ask_for, current

RING = f"lab-tests-{os.getpid()}"
LENGTHS = lab.lognormal(40, 30, longest=240)


@pytest.fixture(scope="module")
def engine():
    config = EngineConfig(model="tiny", backend="cpu", ring_name=RING, slots=64, max_seats=4, kv_tokens=1024,
                          max_model_len=256, policy="vtc")  # fmt: skip
    with LocalEngine(config) as running:
        yield running


@pytest.fixture(scope="module")
def measured(engine) -> Measured:
    asked = lab.gamma(300.0, 120, 2.0, LENGTHS, seed=1, tenants=3, priorities=3)
    return run_live(RING, asked, vocab_size=200, whole=True)


def test_all_requests_are_answered_and_seen(measured: Measured) -> None:
    assert (measured.done >= measured.first).all()
    assert (measured.first > measured.requests.arrive).all()
    finished = [e for e in measured.recording if e.event == Event.FINISH]
    assert sorted(e.arguments[2] for e in finished) == sorted(measured.requests.output.tolist())


def test_compiled_step_decides_what_the_engine_decided(engine, measured: Measured) -> None:
    found = decisions(measured, engine.spec, engine.ring.geometry, find("vtc"))
    assert found is None, str(found)
    assert decisions(measured, engine.spec, engine.ring.geometry, find("sjf")) is not None


def test_plain_python_decides_what_the_engine_decided(engine, measured: Measured) -> None:
    copy = PythonCopy("live_tests")
    found = decisions(measured, engine.spec, engine.ring.geometry, find("vtc"), plain=copy)
    assert found is None, str(found)


def test_trace_is_whole(measured: Measured) -> None:
    found = spans(measured.recording)
    steps = [e for e in measured.recording if e.event in (Event.DECODE, Event.PREFILL)]
    assert len(step_durations(measured.recording)) >= len(steps) - 1
    served = [span for span in found if span.name == "in service" and "unfinished" not in span.arguments]
    assert len(served) >= len(measured.requests)
    assert all(span.end_ns >= span.start_ns for span in found)
    text = json.dumps(perfetto(measured.recording))
    events = json.loads(text)["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "i", "C"}
    table = frame(measured.recording)
    assert len(table) == len(measured.recording)
    assert set(table[table.event == "FINISH"].reason) == {"LENGTH"}


def test_swapping_under_load_loses_nothing_and_answers_nothing_twice(engine) -> None:
    asked = lab.poisson(200.0, 250, LENGTHS, seed=2, tenants=3, priorities=3)
    swapped: list[str] = []
    failed: list[Exception] = []
    over = threading.Event()

    def swap() -> None:
        names = list(SHIPPED)
        while not over.is_set():
            try:
                ask_for(engine.ring.view, names[len(swapped) % len(names)])
            except PolicyError as error:
                failed.append(error)
                return
            swapped.append(current(engine.ring.view))
            time.sleep(0.02)

    swapper = threading.Thread(target=swap)
    swapper.start()
    runs = []
    try:
        while len(swapped) < 3 and not failed:  # however slow this machine is
            runs.append(run_live(RING, asked, vocab_size=200))
    finally:
        over.set()
        swapper.join(60)
    assert not failed
    assert swapped[:3] == list(SHIPPED)[:3]
    for seen in runs:
        finished = [e for e in seen.recording if e.event == Event.FINISH]
        assert sorted(e.arguments[2] for e in finished) == sorted(seen.requests.output.tolist())
        assert len({(e.arguments[0], e.number) for e in finished}) == len(asked)
    assert any(e.event == Event.POLICY for seen in runs for e in seen.recording), "swapped under load"


def test_a_policy_of_the_tests_own_is_simulated_run_and_replayed(engine) -> None:
    own = find("tests.lab.own_policy:OWN")
    ring = f"{RING}-own"
    config = EngineConfig(
        model="tiny", backend="cpu", ring_name=ring, slots=64, max_seats=4, kv_tokens=1024, max_model_len=256,
        policy="tests.lab.own_policy:OWN",
    )  # fmt: skip
    asked = lab.gamma(300.0, 100, 2.0, LENGTHS, seed=6, tenants=3)
    with LocalEngine(config) as running:
        seen = run_live(ring, asked, vocab_size=200, whole=True)
        spec, geometry = running.spec, running.ring.geometry
    assert decisions(seen, spec, geometry, own) is None
    assert decisions(seen, spec, geometry, own, plain=PythonCopy("own_tests")) is None
    table = lab.constant(1000.0)
    outcome = lab.simulate(asked, table.engine(seats=4, max_model_len=256), table.times(), own)
    assert (outcome.done > 0).all()


def test_a_policy_from_a_file_is_loaded_into_the_running_engine(engine, tmp_path, monkeypatch) -> None:
    (tmp_path / "p.py").write_text(
        "from scheduler.policy import policy\nfrom scheduler.view import ticket\n"
        "def newest(view, request):\n    return -ticket(view, request)\n"
        "LIFO = policy(name='lifo', key=newest)\n"
    )
    monkeypatch.chdir(tmp_path)
    ask_for(engine.ring.view, "p.py:LIFO")
    assert current(engine.ring.view) == "lifo"
    seen = run_live(RING, lab.poisson(100.0, 30, LENGTHS, seed=3), vocab_size=200)
    assert (seen.done > 0).all()
    with pytest.raises(PolicyError, match="has no policy 'nonesuch'"):
        ask_for(engine.ring.view, "nonesuch")
    assert current(engine.ring.view) == "lifo", "a refused policy changes nothing"
    ask_for(engine.ring.view, "fcfs")
    assert current(engine.ring.view) == "fcfs"


def test_a_policy_that_raises_gives_way_to_first_come(engine, tmp_path, monkeypatch) -> None:
    (tmp_path / "raises.py").write_text(
        "import numba\nfrom scheduler.policy import policy\nfrom scheduler.view import tenant\n"
        "@numba.njit(error_model='python')\n"
        "def small(who):\n    return 1 // (who - 7)\n"
        "def key(view, request):\n    return small(tenant(view, request))\n"
        "RAISES = policy(name='raises', key=key)\n"
        "def zero(view, request):\n    return 1 // (tenant(view, request) - 7)\n"
        "ZERO = policy(name='zero', key=zero)\n"
    )
    monkeypatch.chdir(tmp_path)
    view = engine.ring.view
    asked = lab.poisson(100.0, 8, LENGTHS, seed=3)
    of_seven = dataclasses.replace(asked, tenant=np.full(8, 7))  # whom no trying out knows
    ask_for(view, "raises.py:RAISES")
    run_live(RING, of_seven, vocab_size=200)
    assert engine.running()
    assert "policy 'raises' raised ZeroDivisionError" in engine.failure()
    assert current(view) == "fcfs"
    ask_for(view, "raises.py:ZERO")
    seen = run_live(RING, of_seven, vocab_size=200)
    assert current(view) == "zero", "a division by zero is 0 in compiled code"
    finished = [e.arguments[2] for e in seen.recording if e.event == Event.FINISH]
    assert sorted(finished) == sorted(seen.requests.output.tolist())
    ask_for(view, "fcfs")


@pytest.fixture
def beside(tmp_path, monkeypatch) -> str:
    """The smallest policy that reads beside its array, in a file of the engine's folder."""
    (tmp_path / "b.py").write_text(
        "from scheduler.policy import policy\n\n\n"
        "def far(view, request):\n    return view.slots[request * 1_000_000]\n\n\n"
        "BESIDE = policy(name='beside', key=far)\n"
    )
    monkeypatch.chdir(tmp_path)
    return "b.py:BESIDE"


WHY = r"policy 'beside': index is out of bounds, in key \(\S*b\.py:4\).*fold the index into the array's"


def test_a_policy_that_reads_beside_an_array_is_refused_under_load(engine, beside, caplog) -> None:
    view, fault = engine.ring.view, engine.failure()
    ask_for(view, "srpt")
    number = int(view.command[at.C_POLICY])
    runs: list[Measured] = []
    over = threading.Event()

    def load() -> None:
        while not over.is_set():
            runs.append(run_live(RING, lab.poisson(200.0, 60, LENGTHS, seed=5), vocab_size=200))

    loading = threading.Thread(target=load)
    loading.start()
    try:
        told = CliRunner().invoke(app, ["policy", "set", beside, "--ring", RING])
        assert view.command[at.C_POLICY] == number, "found before the engine is asked"
        with pytest.raises(PolicyRefused, match="its log says why"):
            ask_for(view, beside)
    finally:
        over.set()
        loading.join(60)
    assert told.exit_code == 1
    assert re.fullmatch(f"error: {WHY}.*\n", told.output)
    assert re.search(WHY, caplog.text)
    assert current(view) == "srpt"
    assert engine.failure() == fault
    assert runs
    for seen in runs:
        finished = [e.arguments[2] for e in seen.recording if e.event == Event.FINISH]
        assert sorted(finished) == sorted(seen.requests.output.tolist())
    ask_for(view, "fcfs")


@pytest.mark.parametrize("setting", ["policy", "preload"])
def test_no_engine_starts_with_a_policy_that_reads_beside_an_array(beside, setting) -> None:
    config = EngineConfig(model="tiny", backend="cpu", ring_name=f"{RING}-no")
    config = dataclasses.replace(config, **{setting: beside if setting == "policy" else (beside,)})
    said: list[str] = []
    with pytest.raises(EngineStartError, match=WHY):
        LocalEngine(config, said.append)
    assert [line.split()[0] for line in said] == ["trying"], "before weights are read"


def test_what_ships_is_not_tried_out_at_each_start(monkeypatch) -> None:
    tried = []
    checks = sys.modules[lab.Checked.__module__]  # its package has a function of the same name
    monkeypatch.setattr(checks, "try_out", lambda policy: tried.append(policy.name))
    assert [load_policy(name).name for name in SHIPPED] == list(SHIPPED)
    assert tried == []
    load_policy("tests.lab.own_policy:OWN")
    assert tried == ["own"]


def test_top_shows_what_the_ring_holds(engine) -> None:
    reading = Reading(engine.ring.view)
    reading.look()
    run_live(RING, lab.poisson(300.0, 40, LENGTHS, seed=4), vocab_size=200)
    reading.look()
    assert len(reading.latencies.ttft_ms) == 40
    assert np.median(np.array(reading.latencies.ttft_ms)) > 0
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render(reading, RING, blocks=engine.spec.blocks))
    text = console.export_text()
    assert "scheduler running" in text
    assert f"{engine.spec.blocks:,} / {engine.spec.blocks:,}" in text
    assert f"policy {current(engine.ring.view)}" in text
    assert (slot_states(engine.ring.view) == State.EMPTY).all()
