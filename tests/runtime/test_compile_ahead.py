"""The scheduler is compiled by a second process on a first start, and by none on a later one."""

from __future__ import annotations

import subprocess

from blink_numba.runtime import compile_ahead
from blink_numba.runtime.compile_ahead import compiling_ahead


class Started:
    """A process that runs until it is killed."""

    def __init__(self) -> None:
        self.killed = self.waited = False

    def poll(self):
        return -9 if self.killed else None

    def wait(self, timeout=None):
        self.waited = True
        if timeout is not None and not self.killed:
            raise subprocess.TimeoutExpired("compile_ahead", timeout)

    def kill(self):
        self.killed = True


def test_a_warm_cache_starts_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_ahead._config, "CACHE_DIR", str(tmp_path))
    (tmp_path / "loops").mkdir()
    (tmp_path / "loops" / "cpu.run-79.py311.nbi").touch()
    monkeypatch.setattr(compile_ahead.subprocess, "Popen", None)  # calling it would fail
    with compiling_ahead() as compiled:
        compiled()


def test_a_process_that_is_not_waited_for_is_ended(tmp_path, monkeypatch):
    started = Started()
    monkeypatch.setattr(compile_ahead._config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_ahead, "CACHING", True)
    monkeypatch.setattr(compile_ahead.subprocess, "Popen", lambda *_, **__: started)
    try:
        with compiling_ahead():
            raise ValueError("the model does not load")
    except ValueError:
        pass
    assert started.killed
    assert started.waited


def test_a_compiler_that_hangs_delays_and_does_not_fail(tmp_path, monkeypatch):
    started = Started()
    monkeypatch.setattr(compile_ahead._config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_ahead, "CACHING", True)
    monkeypatch.setattr(compile_ahead.subprocess, "Popen", lambda *_, **__: started)
    with compiling_ahead() as compiled:
        compiled()
    assert started.killed
