"""Times from the flight recorder: the scheduler's own clock, whoever looks and however late."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ring.atomics import load_acquire
from ring.jit import njit
from ring.layout import FLIGHT_WORDS
from ring.recorder import Event

NUMBER, TIME, EVENT, A, B, C, D = range(7)  # columns of an entry; NUMBER is the entry's plus one
P50, P99, P999 = 50.0, 99.0, 99.9


@njit
def newest(flight):
    """Number of the next entry to be written."""
    latest = 0
    for index in range(flight.shape[0] // FLIGHT_WORDS):
        latest = max(latest, load_acquire(flight, index * FLIGHT_WORDS))  # pairs with the release in record
    return latest


@njit
def copy_entries(flight, first, out):
    """Copy entries from number `first` on, as far as they are written. Returns (copied, next, lost)."""
    entries = flight.shape[0] // FLIGHT_WORDS
    number, copied, lost = first, 0, 0
    while copied < out.shape[0]:
        at = (number % entries) * FLIGHT_WORDS
        before = load_acquire(flight, at)  # pairs with the release in record
        if before > number + 1:  # overwritten: go on with what will still be there in a while
            onward = before - entries // 2
            lost += onward - number
            number = onward
            continue
        if before != number + 1:
            break
        for word in range(FLIGHT_WORDS):
            out[copied, word] = load_acquire(flight, at + word)
        if load_acquire(flight, at) == before:
            copied += 1
        else:
            lost += 1
        number += 1
    return copied, number, lost


class FlightTail:
    """Follows a flight recorder from now on.

    Parameters
    ----------
    flight : int64[entries * 8]

    Attributes
    ----------
    lost : int
        Entries overwritten before they were taken.
    """

    def __init__(self, flight: np.ndarray) -> None:
        self._flight = flight
        self._next = int(newest(flight))
        self._out = np.zeros((flight.shape[0] // FLIGHT_WORDS, FLIGHT_WORDS), np.int64)
        self._parts: list[np.ndarray] = []
        self.lost = 0

    def look(self) -> None:
        """Take what was recorded since the last look; often enough, or entries are lost."""
        copied, self._next, lost = copy_entries(self._flight, self._next, self._out)
        self.lost += int(lost)
        if copied:
            self._parts.append(self._out[:copied].copy())

    def entries(self) -> np.ndarray:
        """All that was taken, int64[n, 8]."""
        self.look()
        return np.concatenate([np.zeros((0, FLIGHT_WORDS), np.int64), *self._parts])


def decode_steps(
    entries: np.ndarray, batch: int | None = None, beyond: Callable[[np.ndarray], np.ndarray] | None = None
) -> np.ndarray:
    """Times from one decode step's launch to that of the next, µs.

    Only pairs of steps that follow each other directly over the same graph, so prefills and
    idle turns between them do not count.

    Parameters
    ----------
    entries : int64[n, 8]
    batch : int, optional
        Only steps of so many rows.
    beyond : callable, optional
        From the steps' tickets, int64[n], to what each takes by itself, in µs: told is what they take more.
    """
    steps = entries[np.isin(entries[:, EVENT], (Event.DECODE, Event.PREFILL))]
    before, after = steps[:-1], steps[1:]
    paired = (before[:, EVENT] == Event.DECODE) & (after[:, EVENT] == Event.DECODE)
    paired &= (after[:, A] == before[:, A] + 1) & (after[:, D] == before[:, D])
    if batch is not None:
        paired &= (before[:, B] == batch) & (after[:, B] == batch)
    launched = steps[:, TIME] + steps[:, C]  # of decodes
    times = (launched[1:] - launched[:-1])[paired] / 1e3
    return times if beyond is None else times - beyond(before[paired, A])


def prefill_rate(entries: np.ndarray) -> float:
    """Prompt tokens a second of prefills that follow each other directly; 0 without any.

    From each prefill's launch to the next step's.
    """
    steps = entries[np.isin(entries[:, EVENT], (Event.DECODE, Event.PREFILL))]
    before, after = steps[:-1], steps[1:]
    paired = (before[:, EVENT] == Event.PREFILL) & (after[:, A] == before[:, A] + 1)
    spent = float((after[paired, TIME] - before[paired, TIME]).sum())
    return float(before[paired, B].sum()) / spent * 1e9 if spent else 0.0


def quantiles(values: np.ndarray) -> dict[str, float]:
    """``p50``, ``p99``, ``p999``, ``mean``, ``count``; raises ValueError without values."""
    if len(values) == 0:
        raise ValueError("nothing was measured: no sample fell into the time given, measure for longer")
    p50, p99, p999 = np.percentile(values, (P50, P99, P999))
    return {
        "p50": float(p50), "p99": float(p99), "p999": float(p999), "mean": float(np.mean(values)),
        "count": len(values),
    }  # fmt: skip
