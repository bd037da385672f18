"""Commands that look at a running engine: which ring they mean, and how they say what is wrong."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blink_numba.cli import app, rings
from ring.layout import RingGeometry
from ring.memory import RingError, RingMemory

run = CliRunner().invoke
GEOMETRY = RingGeometry(slots=32, arena_tokens=1024, log_entries=64, flight_entries=16)


@pytest.fixture
def shm(tmp_path, monkeypatch):
    monkeypatch.setattr("ring.memory.SHM", tmp_path)
    return tmp_path


def make(name: str) -> RingMemory:
    return RingMemory.create(name, GEOMETRY, max_model_len=64, vocab_size=100)


def test_the_only_ring_is_meant_where_none_is_named(shm):
    with pytest.raises(RingError, match="no engine runs here"):
        rings.the_ring(None)
    (shm / "blink-numba-broken").write_bytes(b"no ring")
    with make("one"):
        assert rings.the_ring(None) == "one"
        assert rings.the_ring("other") == "other"
        with make("two"), pytest.raises(RingError, match="choose one with --ring: one, two"):
            rings.the_ring(None)
    with pytest.raises(RingError, match="no engine runs here"):
        rings.the_ring(None)


@pytest.mark.parametrize("arguments", [
    ["top", "--once"], ["trace"], ["policy", "show"], ["policy", "set", "fcfs"], ["top", "--ring", "nix"],
    ["policy", "check", "nosuch"], ["policy", "compare", "fcfs", "--rate", "nan"],
    ["policy", "compare", "fcfs", "--table", "nosuch"],
])  # fmt: skip
def test_what_is_missing_or_wrong_is_one_line(shm, arguments):
    result = run(app, arguments)
    assert result.exit_code == 1
    lines = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert isinstance(result.exception, SystemExit), "no traceback"


@pytest.mark.parametrize("option", ["--perfetto", "--csv"])
def test_a_file_that_cannot_be_written_is_one_line(shm, option, monkeypatch):
    from ring.recorder import Entry, Event

    found = [Entry(0, 5, Event.DECODE, (1, 1, 0, 0))]
    monkeypatch.setattr("ring.recorder.entries", lambda flight: found)
    with make("one"):
        result = run(app, ["trace", option, "/nowhere/x"])
    assert result.exit_code == 1
    assert result.output.startswith("error: ")
    assert isinstance(result.exception, SystemExit)


def test_a_comparison_fits_a_narrow_terminal():
    result = run(app, ["policy", "compare", "fcfs", "sjf", "--requests", "50"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert "…" not in result.output
    assert "times in ms" in result.output


def test_commands_from_outside_take_turns(shm):
    order, entered = [], threading.Event()
    with make("one") as memory:

        def hold() -> None:
            with memory.exclusively(5.0):
                order.append("first")
                entered.set()
                time.sleep(0.05)
                order.append("first is done")

        holder = threading.Thread(target=hold)
        holder.start()
        assert entered.wait(5.0)
        with RingMemory.attach("one") as other:
            with pytest.raises(RingError, match="not done yet"), other.exclusively(0.0):
                pass
            with other.exclusively(5.0):
                order.append("second")
        holder.join()
    assert order == ["first", "first is done", "second"]


def test_a_ring_that_cannot_be_made_says_where(monkeypatch):
    monkeypatch.setattr("ring.memory.SHM", Path("/nowhere"))
    with pytest.raises(RingError, match=r"no ring can be made in /nowhere .*BLINK_NUMBA_SHM"):
        make("one")
