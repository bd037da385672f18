"""The same workload gives the same decisions in step time, compiled and as plain Python."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ring.python_copy import PythonCopy

MODULES = (
    "ring.layout", "ring.words", "ring.views", "ring.recorder", "graphs.step_io", "graphs.grid",
    "graphs.launcher", "scheduler.state", "scheduler.turn", "scheduler.policy",
)  # fmt: skip
SLOTS, SHARE, TURNS = 32, 64, 600


def sources(load: Any) -> SimpleNamespace:
    return SimpleNamespace(**{path.rpartition(".")[2]: load(path) for path in MODULES})


def decisions(code: SimpleNamespace, policy: Any) -> list[tuple]:
    """Decisions for a fixed workload: arrivals, cancels and ends by turn number."""
    at, sc, io_module, words_module = code.layout, code.state, code.step_io, code.words
    spec = io_module.EngineSpec(
        seats=3, decode_batches=(1, 2, 3), prefill_tokens=(4, 16), prefill_sequences=2,
        block_size=4, blocks=14, blocks_per_seat=12, max_model_len=48, vocab_size=100, eos_ids=(1,),
    )  # fmt: skip
    geometry = at.RingGeometry(slots=SLOTS, arena_tokens=SLOTS * SHARE, log_entries=256, flight_entries=2048)
    words = np.zeros(geometry.words(), np.int64)
    code.views.format_ring(words, geometry)
    ring = code.views.host_view(words)
    state_words = sc.make_state(spec, geometry)
    code.policy.install(sc.state_view(state_words), policy)
    state = sc.state_view(state_words)
    io_words = np.zeros(io_module.step_words(spec), np.int64)
    io_module.format_step(io_words, spec)
    io = io_module.step_view(io_words)
    table = code.grid.table_view(code.grid.make_table(spec))
    launcher = code.launcher.launcher_view(code.launcher.make_launcher(2 * len(code.grid.shapes(spec))))
    random = np.random.default_rng(11)
    taken = 0
    for number in range(TURNS):
        for _ in range(int(random.integers(0, 2)) if number < 150 else 0):
            _submit(code, ring, int(random.integers(0, SLOTS)), random, words_module)
        verdict = code.turn(ring, state, io, table, launcher, *policy.functions, 0, 1, 1000 * number)
        if verdict == sc.CLOSE_WINDOW:
            state.core[sc.K_WINDOW] = 0
            code.launcher.open_window(launcher)
        executable = code.launcher.peek(launcher, taken)
        if executable >= 0 and number % 3 != 2:  # a step takes one turn or two
            taken += 1
            _engine_step(io, table, executable, io_module)
            code.launcher.retire(launcher, executable)
    return [
        (entry.event.name, entry.time_ns, entry.arguments) for entry in code.recorder.entries(ring.flight)
    ]


def _submit(code: SimpleNamespace, ring: Any, slot: int, random: Any, words: Any) -> None:
    at = code.layout
    ctl, req = int(ring.ctl[2 * slot]), int(ring.req[slot])
    if words.ctl_state(ctl) not in (0, 5) or words.req_incarnation(req) != words.ctl_incarnation(ctl):
        if random.integers(0, 3) == 0:
            ring.req[slot] = words.pack_req(words.req_incarnation(req), words.CANCEL)
        return
    incarnation = words.req_incarnation(req) + 1
    prompt, answer = int(random.integers(1, 24)), int(random.integers(1, 20))
    ring.tokens[slot * SHARE : slot * SHARE + prompt] = random.integers(2, 100, prompt)
    row = ring.descriptor[slot * at.DESCRIPTOR_WORDS : (slot + 1) * at.DESCRIPTOR_WORDS]
    row[:] = 0
    row[at.Q_PROMPT_START], row[at.Q_PROMPT_LEN] = slot * SHARE, prompt
    row[at.Q_OUTPUT_START], row[at.Q_MAX_TOKENS] = slot * SHARE + prompt, answer
    ring.req[slot] = words.pack_req(incarnation, words.SUBMIT)
    ring.doorbell[0] = int(ring.doorbell[0]) & ~(1 << slot) | (incarnation & 1) << slot


def _engine_step(io: Any, table: Any, executable: int, step_io: Any) -> None:
    graph = executable // 2
    if table.kind[graph] == 0:
        for row in range(int(table.shape[graph])):
            if io.decode_rows[row] >= 0:
                seat = io.decode_rows[row]
                io.out_token[seat] = 1 + (io.seat_token[seat] * 7 + io.seat_position[seat]) % 99
    else:
        for run in range(io.run_seat.shape[0]):
            if io.run_seat[run] >= 0 and io.run_samples[run]:
                last = io.run_start[run + 1] - 1
                io.out_token[io.run_seat[run]] = (
                    1 + (io.prefill_token[last] * 7 + io.prefill_position[last]) % 99
                )
    io.control[step_io.DONE] = io.control[step_io.TICKET]


@pytest.fixture(scope="module")
def copy():
    made = PythonCopy("copy_for_traces")
    yield made
    made.close()


def test_decisions_are_equal(copy):
    compiled = sources(importlib.import_module)
    compiled.turn = importlib.import_module("scheduler.turn").turn
    plain = sources(copy.module)
    plain.turn = copy.module("scheduler.turn").turn
    there = decisions(plain, plain.policy.FCFS)
    here = decisions(compiled, compiled.policy.FCFS)
    for number, (one, other) in enumerate(zip(here, there, strict=False)):
        assert one == other, f"decision {number}"
    assert len(here) == len(there)
    kinds = {event for event, _, _ in here}
    assert {"CLAIM", "ADMIT", "PREFILL", "DECODE", "FINISH", "PREEMPT"} <= kinds
    assert len(here) > 300
