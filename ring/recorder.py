"""The flight recorder: the scheduler's last decisions, stamped, readable one-sidedly.

A ring of entries of eight words: number, time, event, four arguments, spare. The number is
stored last and is the entry's position + 1, so a reader that raced a wrap sees a number
that does not fit and drops the entry.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ring.atomics import load_acquire, store_relaxed, store_release
from ring.jit import uncounted
from ring.layout import FLIGHT_WORDS


class Event(IntEnum):
    """What a flight-recorder entry tells; its arguments in brackets."""

    CLAIM = 1  # [slot, incarnation, ticket, prompt tokens]
    ADMIT = 2  # [slot, seat, prompt tokens, blocks]
    PREFILL = 3  # [ticket of the step, tokens, runs, exec]
    DECODE = 4  # [ticket of the step, batch, ns from the turn's time to the launch, exec]
    FINISH = 5  # [slot, seat or -1, tokens, reason]
    PREEMPT = 6  # [slot, seat, tokens, blocks freed]
    WINDOW = 7  # [launches in the window that ends, 0, 0, 0]
    RETRY = 8  # [exec, code, try, 0]
    FAULT = 9  # [error, argument, 0, 0]
    DRAINED = 10  # [front end, generation, 0, 0]
    STOP = 11  # [mode, 0, 0, 0]
    POLICY = 12  # [request to swap, preset or -1 for one that must be loaded, 0, 0]


(
    E_CLAIM,
    E_ADMIT,
    E_PREFILL,
    E_DECODE,
    E_FINISH,
    E_PREEMPT,
    E_WINDOW,
    E_RETRY,
    E_FAULT,
    E_DRAINED,
    E_STOP,
    E_POLICY,
) = (int(event) for event in Event)


class Entry(NamedTuple):
    """One decision. `time_ns` is the scheduler's clock; `arguments` are four int64."""

    number: int
    time_ns: int
    event: Event
    arguments: tuple[int, int, int, int]

    @property
    def launched_ns(self) -> int:
        """When a step was launched: later than its turn began, where turns poll for long."""
        return self.time_ns + (self.arguments[2] if self.event == Event.DECODE else 0)

    @property
    def decision(self) -> Entry:
        """The entry without what only a clock says."""
        step, batch, _, graph = self.arguments
        return self._replace(arguments=(step, batch, 0, graph)) if self.event == Event.DECODE else self


@uncounted
def record(flight, number, now, event, a, b, c, d):
    """Write entry `number` (0, 1, 2, …). One lane only.

    Parameters
    ----------
    flight : int64[entries * 8]
    """
    at = (number & (flight.shape[0] // FLIGHT_WORDS - 1)) * FLIGHT_WORDS  # entries: a power of two
    store_relaxed(flight, at, 0)
    store_relaxed(flight, at + 1, now)
    store_relaxed(flight, at + 2, event)
    store_relaxed(flight, at + 3, a)
    store_relaxed(flight, at + 4, b)
    store_relaxed(flight, at + 5, c)
    store_relaxed(flight, at + 6, d)
    store_release(flight, at, number + 1)  # pairs with the acquire in read_entry


@uncounted
def _read_entry(flight, index, out):
    at = index * FLIGHT_WORDS
    before = load_acquire(flight, at)  # pairs with the release in record
    for word in range(FLIGHT_WORDS):
        out[word] = load_acquire(flight, at + word)
    return before != 0 and load_acquire(flight, at) == before


def entries(flight) -> list[Entry]:
    """The recorded entries, oldest first; entries being overwritten are left out."""
    import numpy as np

    out = np.zeros(FLIGHT_WORDS, np.int64)
    count = flight.shape[0] // FLIGHT_WORDS
    found = []
    for index in range(count):
        if not _read_entry(flight, index, out):
            continue
        number = int(out[0]) - 1
        if number % count == index:
            arguments = int(out[3]), int(out[4]), int(out[5]), int(out[6])
            found.append(Entry(number, int(out[1]), Event(int(out[2])), arguments))
    return sorted(found)
