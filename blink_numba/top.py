"""``blink-numba top``: a running scheduler, seen from outside.

It maps the ring and reads; nothing is asked of scheduler or front end, so watching costs them
nothing. Rates are differences of two readings. TTFT and TPOT come from the flight recorder.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from blink_numba.bench.flight import EVENT, TIME, A, B, C, copy_entries, newest
from ring import layout as at
from ring.memory import RingMemory
from ring.recorder import Event
from ring.states import State
from ring.views import RingView
from ring.words import RELEASE, SLOTS_PER_DOORBELL
from scheduler.policy import unpack_name
from scheduler.state import NAME_WORDS

GLYPHS = {
    State.EMPTY: ("·", "grey37"),
    State.PREFILL_PENDING: ("w", "yellow"),
    State.PREFILL_PROCESSING: ("P", "dark_orange"),
    State.DECODE_PROCESSING: ("D", "green"),
    State.DECODE_PAUSED: ("‖", "magenta"),
    State.DECODE_COMPLETED: ("c", "blue"),
}
PHASES = {
    at.PHASE_OFF: ("off", "grey50"),
    at.PHASE_RUNNING: ("running", "green"),
    at.PHASE_STOPPED: ("stopped", "yellow"),
    at.PHASE_FAULTED: ("FAULTED", "bold red"),
    at.PHASE_PARKED: ("parked", "yellow"),
}
RECENT = 512  # requests that medians are taken of
STALLED_AFTER = 2  # readings without a heartbeat


def slot_states(ring: RingView) -> np.ndarray:
    """State of every slot, int64[slots] (`ring.states.State`); one reading, each word of its own moment."""
    words = ring.ctl[:: at.CTL_WORDS].copy()
    requests = ring.req.copy()
    states = words & 0xF
    released = (requests & 0xFF == RELEASE) & (requests >> 8 == words >> 32)
    return np.where((states == State.DECODE_COMPLETED) & released, State.EMPTY, states)


@dataclass
class Latencies:
    """TTFT and TPOT of the requests that ended lately, from what the scheduler recorded.

    The first token is counted at the end of the step after the request was seated; a prefill in
    several chunks makes it look earlier by those chunks.
    """

    ttft_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    tpot_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _claimed: dict[int, int] = field(default_factory=dict)
    _seated: dict[int, int] = field(default_factory=dict)
    _first: dict[int, int] = field(default_factory=dict)
    _fresh: list[int] = field(default_factory=list)
    _prefilling: list[int] = field(default_factory=list)

    def add(self, rows: np.ndarray) -> None:
        """Entries in their order, int64[n, 8]."""
        for row in rows:
            event, slot, now = int(row[EVENT]), int(row[A]), int(row[TIME])
            if event in (Event.DECODE, Event.PREFILL, Event.FINISH) and self._prefilling:
                for done in self._prefilling:
                    self._first_token(done, now)
                self._prefilling = []
            if event == Event.CLAIM:
                self._claimed[slot] = now
                self._first.pop(slot, None)
            elif event == Event.ADMIT:
                self._fresh.append(slot)
            elif event == Event.PREFILL:
                count = int(row[C])
                self._prefilling, self._fresh = self._fresh[:count], self._fresh[count:]
            elif event == Event.FINISH:
                first = self._first.pop(slot, None)
                tokens = int(row[C])
                if first is not None and tokens > 1 and int(row[B]) >= 0:
                    self.tpot_ms.append((now - first) / 1e6 / (tokens - 1))

    def _first_token(self, slot: int, now: int) -> None:
        claimed = self._claimed.pop(slot, None)
        if claimed is not None:
            self.ttft_ms.append((now - claimed) / 1e6)
            self._first[slot] = now


@dataclass
class Reading:
    """Two successive looks at a ring."""

    ring: RingView
    latencies: Latencies = field(default_factory=Latencies)
    before: np.ndarray | None = None
    now: np.ndarray | None = None
    seconds: float = 0.0
    stalled: int = 0
    _at: float = 0.0

    def __post_init__(self) -> None:
        entries = self.ring.flight.shape[0] // at.FLIGHT_WORDS
        self._next = int(newest(self.ring.flight))
        self._out = np.zeros((entries, at.FLIGHT_WORDS), np.int64)

    def look(self) -> None:
        """Read the counters, and the decisions since the last look."""
        moment = time.monotonic()
        self.before, self.now = self.now, self.ring.status.copy()
        self.seconds, self._at = moment - self._at, moment
        copied, self._next, _ = copy_entries(self.ring.flight, self._next, self._out)
        self.latencies.add(self._out[:copied])
        if self.before is not None:
            beating = self.now[at.S_HEARTBEAT] != self.before[at.S_HEARTBEAT]
            self.stalled = 0 if beating else self.stalled + 1

    def rate(self, word: int) -> float:
        """Increase of a counter a second."""
        if self.before is None or self.now is None or self.seconds <= 0:
            return 0.0
        return float(self.now[word] - self.before[word]) / self.seconds


def render(reading: Reading, name: str, *, width: int = 64, blocks: int | None = None) -> RenderableType:
    """The view as Rich draws it."""
    status = reading.now if reading.now is not None else reading.ring.status.copy()
    return Panel(
        Group(
            _headline(reading, status),
            Columns([_counters(reading, status, blocks), _latencies(reading)], padding=(0, 4)),
            _slot_map(reading.ring, width),
        ),
        title=f"blink-numba · {name}",
        title_align="left",
    )


def _headline(reading: Reading, status: np.ndarray) -> Text:
    phase, colour = PHASES.get(int(status[at.S_PHASE]), ("unknown", "red"))
    if phase == "running" and reading.stalled >= STALLED_AFTER:
        phase, colour = "no heartbeat", "bold red"
    policy = unpack_name(status[at.S_POLICY_NAME : at.S_POLICY_NAME + NAME_WORDS]) or "?"
    line = Text.assemble(("scheduler ", "bold"), (phase, colour), f"   policy {policy}")
    if status[at.S_ERROR]:
        line.append(f"   error {int(status[at.S_ERROR])} ({int(status[at.S_ERROR_ARG])})", "red")
    return line


def _counters(reading: Reading, status: np.ndarray, blocks: int | None) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(justify="left", style="grey70")
    table.add_column(justify="right")
    table.add_column(justify="right")
    free = f"{int(status[at.S_BLOCKS_FREE]):,}" + (f" / {blocks:,}" if blocks else "")
    table.add_row("waiting", f"{int(status[at.S_WAITING]):,}", "")
    table.add_row("in service", f"{int(status[at.S_SEATS_USED]):,}", "")
    table.add_row("KV blocks free", free, "")
    for label, word in (("steps", at.S_STEPS), ("decodes", at.S_DECODES), ("prefills", at.S_PREFILLS),
                        ("tokens", at.S_TOKENS), ("finished", at.S_FINISHED),
                        ("preemptions", at.S_PREEMPTIONS), ("launch retries", at.S_RETRIES),
                        ("windows", at.S_WINDOWS)):  # fmt: skip
        table.add_row(label, f"{int(status[word]):,}", f"{reading.rate(word):,.1f}/s")
    return table


def _latencies(reading: Reading) -> Table:
    table = Table(box=None, padding=(0, 1))
    table.add_column("last requests", style="grey70")
    for title in ("p50", "p99"):
        table.add_column(title, justify="right")
    for label, values in (("TTFT ms", reading.latencies.ttft_ms), ("TPOT ms", reading.latencies.tpot_ms)):
        if values:
            row = np.percentile(np.array(values), (50, 99))
            table.add_row(label, f"{row[0]:.2f}", f"{row[1]:.2f}")
        else:
            table.add_row(label, "–", "–")
    return table


def _slot_map(ring: RingView, width: int) -> RenderableType:
    """A glyph a slot; of a ring with many slots the busiest state of each group of 32."""
    states = slot_states(ring)
    grouped = len(states) > 16 * width
    if grouped:
        rank = np.array([0, 2, 4, 5, 3, 1])  # which state stands for a group
        by_group = states.reshape(-1, SLOTS_PER_DOORBELL)
        states = by_group[np.arange(len(by_group)), rank[by_group].argmax(axis=1)]
    text = Text()
    for index, state in enumerate(states):
        glyph, colour = GLYPHS[State(int(state))]
        text.append(glyph, colour)
        if (index + 1) % width == 0:
            text.append("\n")
    legend = Text("a glyph is 32 slots, its busiest  " if grouped else "a glyph is a slot  ", "grey50")
    for state, (glyph, colour) in GLYPHS.items():
        legend.append(f" {glyph} ", colour)
        legend.append(state.name.lower().replace("_", " "), "grey50")
    return Group(text, legend)


def watch(ring_name: str, *, interval_s: float = 0.5, once: bool = False) -> None:
    """Show a ring until interrupted; `once`: two readings `interval_s` apart, then one picture.

    Raises
    ------
    ring.memory.RingError
        There is no such ring.
    """
    from rich.console import Console
    from rich.live import Live

    with RingMemory.attach(ring_name) as memory:
        reading = Reading(memory.view)
        reading.look()
        if once:
            time.sleep(interval_s)
            reading.look()
            Console().print(render(reading, ring_name))
            return
        with Live(render(reading, ring_name), refresh_per_second=1 / interval_s, screen=True) as live:
            while True:
                time.sleep(interval_s)
                reading.look()
                live.update(render(reading, ring_name))
