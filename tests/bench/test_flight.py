"""Times read from the flight recorder, and what the benches make of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from blink_numba.bench import plots
from blink_numba.bench.decode_cuda import batch_rows, step_bytes
from blink_numba.bench.flight import FlightTail, decode_steps, prefill_rate, quantiles
from blink_numba.bench.interference import phase_rows, ratio_rows
from blink_numba.bench.report import Report
from blink_numba.models import SHAPES
from ring.layout import FLIGHT_WORDS
from ring.recorder import Event, record

ENTRIES = 64


def recorded(flight: np.ndarray, first: int, steps: list[tuple]) -> None:
    """Record ``(time, event, ticket, rows or tokens, graph)``."""
    for number, (time, event, ticket, rows, graph) in enumerate(steps, first):
        record(flight, number, time, int(event), ticket, rows, 0, graph)


def test_tail_follows_over_the_wrap():
    flight = np.zeros(ENTRIES * FLIGHT_WORDS, np.int64)
    recorded(flight, 0, [(k, Event.DECODE, k, 1, 0) for k in range(10)])
    tail = FlightTail(flight)
    for first in range(10, 10 + 5 * 40, 40):
        recorded(flight, first, [(k, Event.DECODE, k, 1, 0) for k in range(first, first + 40)])
        tail.look()
    assert tail.entries()[:, 3].tolist() == list(range(10, 210))
    assert tail.lost == 0


def test_a_tail_that_lags_counts_what_it_lost():
    flight = np.zeros(ENTRIES * FLIGHT_WORDS, np.int64)
    tail = FlightTail(flight)
    recorded(flight, 0, [(k, Event.DECODE, k, 1, 0) for k in range(200)])
    numbers = tail.entries()[:, 3].tolist()
    assert numbers == list(range(200 - len(numbers), 200))
    assert tail.lost + len(numbers) == 200


def test_only_steps_that_follow_each_other_count():
    flight = np.zeros(ENTRIES * FLIGHT_WORDS, np.int64)
    tail = FlightTail(flight)
    decode, prefill, window = Event.DECODE, Event.PREFILL, Event.WINDOW
    recorded(flight, 0, [
        (1_000, decode, 1, 4, 2), (3_000, decode, 2, 4, 2), (3_500, window, 120, 0, 0),
        (6_000, decode, 3, 4, 2),
        (7_000, prefill, 4, 512, 9), (11_000, prefill, 5, 300, 9), (13_000, decode, 6, 5, 3),
        (14_500, decode, 7, 5, 3), (90_000, decode, 9, 5, 3), (91_000, decode, 10, 4, 2),
    ])  # fmt: skip
    entries = tail.entries()
    assert decode_steps(entries).tolist() == [2.0, 3.0, 1.5]
    assert decode_steps(entries, 5).tolist() == [1.5]
    assert decode_steps(entries, beyond=lambda tickets: tickets / 4).tolist() == [1.75, 2.5, 0.0]
    assert prefill_rate(entries) == pytest.approx((512 + 300) / 6e-6)


def test_nothing_measured_is_an_error():
    with pytest.raises(ValueError, match="nothing was measured"):
        quantiles(np.zeros(0))


def measured(factor: float) -> dict:
    return {
        "step_us": [500.0 * factor] * 99 + [900.0 * factor], "ttft_ms": [5.0, 6.0], "tpot_ms": [0.5, 0.6],
        "tokens": 1000 / factor, "seconds": 2.0, "lost_entries": 0,
    }  # fmt: skip


def test_interference_compares_loaded_with_idle():
    idle, loaded = measured(1.0), measured(2.0)
    rows = {row.case: row for row in phase_rows("faf/idle", idle) + ratio_rows("faf", idle, loaded)}
    assert rows["faf/idle/step_us"].value == 500.0
    assert rows["faf/idle/tok_s"].value == 500.0
    assert rows["faf/p99_ratio"].value == pytest.approx(2.0)
    assert rows["faf/throughput_ratio"].value == pytest.approx(0.5)
    assert (rows["faf/p99_ratio"].ok, rows["faf/throughput_ratio"].ok) == (False, False)
    assert ratio_rows("host", idle, loaded)[0].ok is None


def test_step_overheads_are_of_one_run():
    steps = [np.full(50, value) for value in (500.0, 504.0, 502.0)]
    rows = {row.case: row for row in batch_rows("smollm2", 16, steps, [498.0, 499.0, 500.0], 60.0, 320, 25)}
    assert rows["smollm2/step_over_graph_us"].value == pytest.approx(3.0)
    assert rows["smollm2/step_over_graph_us"].ok
    assert rows["smollm2/step_over_graph_ratio"].target is None
    assert rows["smollm2/b16/tok_s"].value == pytest.approx(16 / 502e-6)


def test_bytes_of_a_step():
    """The 8B shape has 8.03 billion parameters, of which the embedding's rows are not all read."""
    config = SHAPES["llama3-8b"]
    weights = step_bytes(config, 1, 0)
    assert weights == 2 * (8_030_261_248 - config.vocab_size * config.hidden_size)
    assert step_bytes(config, 2, 1000) - weights == 2 * 1000 * 131_072
    tied = dataclasses.replace(config, tie_word_embeddings=True)
    assert step_bytes(tied, 1, 0) == weights


def test_every_row_but_counts_is_drawn(tmp_path):
    idle, loaded = measured(1.0), measured(2.0)
    rows = phase_rows("faf/idle", idle) + phase_rows("host/idle", loaded) + ratio_rows("faf", idle, loaded)
    report = Report("interference", rows, {"date": "2026-01-01T00:00:00", "machine": "test"})
    drawn = [row.case for _, _, rows_of in plots.panels_of(report) for row in rows_of]
    assert sorted(drawn) == sorted(row.case for row in rows)
    plots.draw(report, tmp_path / "interference.svg")
    assert (tmp_path / "interference.svg").read_text().startswith("<?xml")


def test_steps_are_from_launch_to_launch_not_from_turn_to_turn():
    flight = np.zeros(ENTRIES * FLIGHT_WORDS, np.int64)
    tail = FlightTail(flight)
    record(flight, 0, 1_000, int(Event.DECODE), 1, 4, 500, 2)
    record(flight, 1, 3_000, int(Event.DECODE), 2, 4, 100, 2)
    assert decode_steps(tail.entries()).tolist() == [1.6]
