"""The engine's process: clear failures, and no orphan whatever its parent does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from blink_numba.errors import EngineStartError
from blink_numba.runtime import EngineConfig, EngineProcess, LocalEngine
from blink_numba.runtime.cpu import CpuBackend
from blink_numba.runtime.process import wait_for
from ring import layout as at
from ring.memory import RingMemory, ring_path

ROOT = Path(__file__).parents[2]


def test_a_parent_that_dies_while_the_engine_starts_leaves_no_orphan() -> None:
    code = """
        import os
        from blink_numba.runtime import EngineConfig, EngineProcess
        name = f"test-{os.getpid()}-orphan"
        engine = EngineProcess.spawn(EngineConfig(model="tiny", backend="cpu", ring_name=name))
        print(engine.pid, flush=True)
        os._exit(0)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    engine = int(ended.stdout)
    assert wait_for(lambda: not Path(f"/proc/{engine}").exists() or is_zombie(engine), 30.0)


def test_an_engine_just_made_has_said_how_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the scheduler's thread gets to run late, as on a machine that has other work."""
    run = CpuBackend._run

    def run_late(backend: CpuBackend) -> None:
        time.sleep(0.05)
        run(backend)

    monkeypatch.setattr(CpuBackend, "_run", run_late)
    config = EngineConfig(model="tiny", backend="cpu", ring_name=f"test-{os.getpid()}-said", kv_tokens=2048)
    with LocalEngine(config) as engine:
        status = engine.ring.view.status
        assert status[at.S_BLOCKS_FREE] == engine.spec.blocks
        assert status[at.S_PHASE] == at.PHASE_RUNNING


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "no-such-model"}, "no-such-model"),
        ({"model": "tiny", "policy": "no-such-policy"}, "no-such-policy"),
        ({"model": "tiny", "max_model_len": 1 << 20}, "max_model_len"),
    ],
)
def test_what_cannot_start_says_why(change: dict, message: str) -> None:
    config = EngineConfig(**{"backend": "cpu", "ring_name": f"test-{os.getpid()}-bad", **change})
    engine = EngineProcess.spawn(config)
    with pytest.raises(EngineStartError, match=message):
        engine.wait_ready(60.0)
    assert not engine.alive()


def test_an_engine_is_replaced_on_a_new_ring_where_the_old_ones_file_was_removed() -> None:
    name = f"test-{os.getpid()}-removed"
    with EngineProcess.spawn(EngineConfig(model="tiny", backend="cpu", ring_name=name, slots=32)) as first:
        first.wait_ready()
        ring_path(name).unlink()
        with first.replace() as second:
            second.wait_ready()
            assert second.pid != first.pid
            with RingMemory.attach(name) as ring:
                assert ring.owner_alive()
    assert not ring_path(name).exists()


def test_an_engine_that_finds_its_rings_name_taken_leaves_the_others_ring() -> None:
    config = EngineConfig(model="tiny", backend="cpu", ring_name=f"test-{os.getpid()}-taken", slots=32)
    with EngineProcess.spawn(config) as first:
        first.wait_ready()
        taken = pytest.raises(EngineStartError, match=f"in use by process {first.pid}")
        with EngineProcess.spawn(config) as second, taken:
            second.wait_ready()
        with RingMemory.attach(config.ring_name) as ring:
            assert ring.view.info[at.I_OWNER_PID] == first.pid
            assert ring.owner_alive()
    assert not ring_path(config.ring_name).exists()


def test_an_engine_that_was_killed_leaves_a_ring_until_it_is_stopped() -> None:
    config = EngineConfig(model="tiny", backend="cpu", ring_name=f"test-{os.getpid()}-killed", slots=32)
    with EngineProcess.spawn(config) as engine:
        engine.wait_ready()
        engine.kill()
        assert ring_path(config.ring_name).exists()
    assert not ring_path(config.ring_name).exists()


def test_an_engine_that_holds_starts_when_it_is_released() -> None:
    config = EngineConfig(model="tiny", backend="cpu", ring_name=f"test-{os.getpid()}-held", slots=32)
    with EngineProcess.spawn(config, hold=True) as engine:
        engine.wait_prepared()
        assert engine.held
        assert not engine.info
        assert not ring_path(config.ring_name).exists()
        engine.release()
        engine.wait_ready()
        assert not engine.held
        assert engine.spec.vocab_size == 259
        with pytest.raises(RuntimeError, match="does not hold"):
            engine.release()
    assert not ring_path(config.ring_name).exists()


def test_an_engine_that_holds_is_stopped_and_one_that_cannot_be_prepared_says_why() -> None:
    config = EngineConfig(model="tiny", backend="cpu", ring_name=f"test-{os.getpid()}-held", slots=32)
    with EngineProcess.spawn(config, hold=True) as engine:
        engine.wait_prepared()
    assert not engine.alive()
    with (
        EngineProcess.spawn(EngineConfig(model="tiny", backend="cpu", policy="nosuch"), hold=True) as engine,
        pytest.raises(EngineStartError, match="nosuch"),
    ):
        engine.wait_prepared()
