"""The CPU engine behind its step buffer: padding, faults, threads, start and stop."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from blink_numba.engines import EngineLimits
from blink_numba.engines.cpu import CpuEngine, EngineError
from blink_numba.engines.cpu.step import FAULT_TEAM, lead_steps
from blink_numba.engines.cpu.team import make_team
from blink_numba.engines.sampling import FAULT_INPUT, MOST_TOKENS
from blink_numba.models import ModelError, load_model
from graphs.grid import DECODE, PREFILL, make_table
from graphs.launcher import launch, launcher_view, make_launcher
from graphs.step_io import DONE, FAULT, TICKET, format_step, step_view, step_words
from ring.sections import BufferError
from tests.engines.driver import Driver

LIMITS = EngineLimits(seats=4, kv_tokens=512, prefill_tokens=64, prefill_sequences=3)


@pytest.fixture
def engine():
    engine = CpuEngine(load_model("tiny"), LIMITS)
    yield engine
    engine.stop()


def test_padding_is_neither_read_nor_written(engine):
    driver = Driver(engine)
    driver.prefill({1: np.arange(10), 2: np.arange(20, 29)})
    io = driver.io
    io.seat_token[[0, 3]] = -(2**40)  # would be a fault if they were looked at
    io.seat_position[[0, 3]] = 2**40
    io.out_token[[0, 3]] = 77
    keys = engine._cache.keys.copy()
    io.decode_rows[:] = [-1, 2, -1, 1]
    driver.step(DECODE, 4)
    assert io.out_token[[0, 3]].tolist() == [77, 77]
    changed = np.flatnonzero(engine._cache.keys != keys)
    assert 0 < len(changed) <= 2 * 2 * 2 * 16, "two tokens, in two layers, of two heads of 16"


def test_a_step_of_padding_only_is_done(engine):
    driver = Driver(engine)
    driver.io.decode_rows[:] = -1
    driver.step(DECODE, 2)
    driver.io.run_seat[:] = -1
    driver.step(PREFILL, 16)


def test_a_run_that_does_not_end_its_prompt_samples_nothing(engine):
    driver = Driver(engine)
    driver.io.out_token[:] = 99
    driver.prefill({0: np.arange(5)}, ends=False)
    assert driver.io.out_token.tolist() == [99] * 4


def spoil_token(io):
    io.seat_token[1] = 259


def spoil_position(io):
    io.seat_position[1] = 10_000


def spoil_seat(io):
    io.decode_rows[0] = 4


def spoil_table(io):
    io.block_table.reshape(4, -1)[1, 0] = 512


def spoil_table_below(io):
    io.block_table.reshape(4, -1)[1, 0] = -1


@pytest.mark.parametrize("spoil", [spoil_token, spoil_position, spoil_seat, spoil_table, spoil_table_below])
def test_inputs_outside_the_shapes_are_a_fault_and_the_engine_goes_on(engine, spoil):
    driver = Driver(engine)
    driver.prefill({1: np.arange(10)})
    keys = engine._cache.keys.copy()
    saved = driver.words.copy()
    driver.io.decode_rows[0] = 1
    spoil(driver.io)
    driver.io.control[TICKET] += 1
    assert engine.run_step(driver.words, DECODE, 1) == FAULT_INPUT
    np.testing.assert_array_equal(engine._cache.keys, keys)
    driver.words[:] = saved
    driver.decode([1])


def test_start_and_stop(engine):
    io_words = np.zeros(step_words(engine.spec), np.int64)
    with pytest.raises(BufferError):
        engine.start(io_words, make_table(engine.spec), make_launcher(2))
    format_step(io_words, engine.spec)
    table, launcher = make_table(engine.spec), make_launcher(32)
    engine.start(io_words, table, launcher)
    assert engine.running
    with pytest.raises(EngineError, match="running"):
        engine.start(io_words, table, launcher)
    with pytest.raises(EngineError, match="running"):
        engine.run_step(io_words.copy(), DECODE, 1)
    engine.stop()
    engine.stop()
    assert not engine.running
    Driver(engine).prefill({0: np.arange(5)})


def test_an_unknown_shape_is_named(engine):
    driver = Driver(engine)
    with pytest.raises(EngineError, match="no graph of kind 0 and shape 3"):
        engine.run_step(driver.words, DECODE, 3)


def test_a_missing_team_mate_is_a_fault_not_a_hang(engine):
    io_words = np.zeros(step_words(engine.spec), np.int64)
    format_step(io_words, engine.spec)
    io = step_view(io_words)
    io.decode_rows[0], io.control[TICKET] = 0, 1
    table, launcher = make_table(engine.spec), make_launcher(32)
    team = make_team(2, patience_s=0.05)  # whose second member never comes
    memory = engine._network, engine._cache, engine._acts, engine._scratch[0], team
    leader = threading.Thread(target=lead_steps, args=(io_words, table, launcher, *memory), daemon=True)
    leader.start()
    assert launch(launcher_view(launcher), None, 0) == 0
    leader.join(60)
    assert not leader.is_alive()
    assert io.control[DONE] == 1
    assert io.control[FAULT] == FAULT_TEAM


def test_limits_say_what_is_wrong():
    model = load_model("tiny")
    with pytest.raises(ValueError, match="exceeds the 2048 positions"):
        CpuEngine(model, EngineLimits(max_model_len=4096))
    with pytest.raises(ValueError, match="cannot hold"):
        CpuEngine(model, EngineLimits(max_model_len=2048, kv_tokens=1024))
    with pytest.raises(ValueError, match="multiple of 16"):
        EngineLimits(block_size=24)
    with pytest.raises(ValueError, match="threads"):
        CpuEngine(model, threads=0)
    with pytest.raises(ModelError, match="vocabulary of 262145 tokens"):
        EngineLimits().spec(replace(model.config, vocab_size=MOST_TOKENS + 1))
    assert EngineLimits(kv_tokens=500).spec(model.config).max_model_len == 512
