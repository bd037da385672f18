"""The CPU launcher keeps the device's rules: asynchronous, 120 a window, no relaunch of what runs."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.grid import make_table, table_view
from graphs.launcher import (
    INVALID_VALUE,
    LAUNCHED,
    WINDOW,
    engine_stopped,
    launch,
    launcher_view,
    make_launcher,
    open_window,
    peek,
    retire,
    stop_engine,
)
from graphs.step_io import EngineSpec
from ring.jit import njit

SPEC = EngineSpec(
    seats=1, decode_batches=(1,), prefill_tokens=(16,), prefill_sequences=1, block_size=16, blocks=1,
    blocks_per_seat=1, max_model_len=16, vocab_size=10, eos_ids=(),
)  # fmt: skip


@njit
def compiled_launch(launcher, table, executable):
    return launch(launcher, table, executable)


@pytest.fixture(params=[compiled_launch, launch], ids=["compiled", "python"])
def call(request):
    return request.param


@pytest.fixture
def launcher():
    return launcher_view(make_launcher(4))


TABLE = table_view(make_table(SPEC))


def test_what_is_launched_reaches_every_engine_thread_once(call, launcher) -> None:
    assert peek(launcher, 0) == -1
    for executable in (0, 2, 1):
        assert call(launcher, TABLE, executable) == LAUNCHED
    assert [peek(launcher, taken) for taken in range(4)] == [0, 2, 1, -1]
    assert [peek(launcher, taken) for taken in range(4)] == [0, 2, 1, -1]


def test_an_executable_that_runs_cannot_be_launched_again(call, launcher) -> None:
    assert call(launcher, TABLE, 0) == LAUNCHED
    assert call(launcher, TABLE, 0) == INVALID_VALUE
    assert call(launcher, TABLE, 1) == LAUNCHED
    retire(launcher, 0)
    assert call(launcher, TABLE, 0) == LAUNCHED


def test_the_121st_launch_of_a_window_fails_and_completions_give_nothing_back(call, launcher) -> None:
    for i in range(WINDOW):
        assert call(launcher, TABLE, i % 2) == LAUNCHED
        retire(launcher, i % 2)
    assert call(launcher, TABLE, 0) == INVALID_VALUE
    assert peek(launcher, WINDOW) == -1, "a failed launch must not run"
    open_window(launcher)
    assert call(launcher, TABLE, 0) == LAUNCHED


def test_a_failed_launch_changes_nothing(call, launcher) -> None:
    call(launcher, TABLE, 0)
    before = [np.copy(part) for part in launcher]
    assert call(launcher, TABLE, 0) == INVALID_VALUE
    for old, new in zip(before, launcher, strict=True):
        assert np.array_equal(old, new)


def test_stopping() -> None:
    launcher = launcher_view(make_launcher(1))
    assert not engine_stopped(launcher)
    stop_engine(launcher)
    assert engine_stopped(launcher)
