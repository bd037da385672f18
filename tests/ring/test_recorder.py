"""The flight recorder: the last entries, in order, and none that was being overwritten."""

from __future__ import annotations

import numpy as np

from ring.layout import FLIGHT_WORDS
from ring.recorder import E_DECODE, E_FINISH, Event, entries, record


def test_entries_come_back_in_order() -> None:
    flight = np.zeros(8 * FLIGHT_WORDS, np.int64)
    record(flight, 0, 100, E_DECODE, 1, 2, 3, 4)
    record(flight, 1, 200, E_FINISH, 5, 6, 7, 8)
    first, second = entries(flight)
    assert (first.number, first.time_ns, first.event, first.arguments) == (0, 100, Event.DECODE, (1, 2, 3, 4))
    assert (second.number, second.event, second.arguments) == (1, Event.FINISH, (5, 6, 7, 8))


def test_the_oldest_are_overwritten() -> None:
    flight = np.zeros(4 * FLIGHT_WORDS, np.int64)
    for number in range(11):
        record(flight, number, number, E_DECODE, number, 0, 0, 0)
    assert [entry.number for entry in entries(flight)] == [7, 8, 9, 10]


def test_an_entry_being_written_is_left_out() -> None:
    flight = np.zeros(4 * FLIGHT_WORDS, np.int64)
    for number in range(4):
        record(flight, number, number, E_DECODE, number, 0, 0, 0)
    flight[2 * FLIGHT_WORDS] = 0  # as the writer leaves it while it fills the rest
    assert [entry.number for entry in entries(flight)] == [0, 1, 3]


def test_a_decode_says_how_late_in_its_turn_it_was_launched():
    flight = np.zeros(8 * FLIGHT_WORDS, np.int64)
    record(flight, 0, 1_000, E_DECODE, 7, 4, 60, 2)
    record(flight, 1, 2_000, E_FINISH, 7, 4, 60, 2)
    decode, finish = entries(flight)
    assert (decode.launched_ns, finish.launched_ns) == (1_060, 2_000)
    assert decode.decision.arguments == (7, 4, 0, 2), "two instances decide alike, whenever they launch"
    assert finish.decision == finish
