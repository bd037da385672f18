"""The flight recorder for people: a Perfetto timeline, a DataFrame, a list of decisions.

The scheduler stamps each decision into a ring that anybody may read (`ring.recorder`); here the
entries of one reading become spans: steps on a track of their own, and for each slot the time a
request waited, prefilled, decoded and was preempted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ring.recorder import Entry, Event
from ring.states import Reason

if TYPE_CHECKING:
    import pandas

SCHEDULER, REQUESTS = 1, 2  # processes of the timeline
STEPS, EVENTS = 1, 2  # tracks of the scheduler

# What the four arguments of an entry are called.
ARGUMENTS: dict[Event, tuple[str, ...]] = {
    Event.CLAIM: ("slot", "incarnation", "ticket", "prompt_tokens"),
    Event.ADMIT: ("slot", "seat", "tokens", "blocks"),
    Event.PREFILL: ("step", "tokens", "runs", "graph"),
    Event.DECODE: ("step", "batch", "launched_after_ns", "graph"),
    Event.FINISH: ("slot", "seat", "tokens", "reason"),
    Event.PREEMPT: ("slot", "seat", "tokens", "blocks"),
    Event.WINDOW: ("launches",),
    Event.RETRY: ("exec", "code", "attempt"),
    Event.FAULT: ("error", "argument"),
    Event.DRAINED: ("front_end", "generation"),
    Event.STOP: ("mode",),
    Event.POLICY: ("request", "preset"),
}


@dataclass(frozen=True)
class Span:
    """A stretch of time on a track; nanoseconds on the scheduler's clock."""

    name: str
    process: int
    track: int
    start_ns: int
    end_ns: int
    arguments: dict[str, Any]


def arguments_of(entry: Entry) -> dict[str, Any]:
    """An entry's arguments by their names; a reason to finish by its name."""
    names = ARGUMENTS.get(entry.event, ("a", "b", "c", "d"))
    found: dict[str, Any] = {name: value for name, value in zip(names, entry.arguments) if name}
    if entry.event == Event.FINISH:
        found["reason"] = Reason(found["reason"]).name
    return found


def spans(entries: Iterable[Entry]) -> list[Span]:
    """Steps and the phases of requests, in the order in which they end.

    A step ends at the next decision after its launch: the scheduler looks again at once. What the
    recorder had already overwritten at the front is left out; what is not over yet ends with the
    last entry.
    """
    found: list[Span] = []
    step: Entry | None = None
    phases: dict[int, tuple[str, int, dict[str, Any]]] = {}  # slot: phase, since, arguments
    last = 0

    def close(slot: int, now: int, **more: Any) -> None:
        name, since, arguments = phases.pop(slot)
        found.append(Span(name, REQUESTS, slot, since, now, {**arguments, **more}))

    for entry in entries:
        last, now = entry.time_ns, entry.time_ns
        if step is not None and entry.event != Event.CLAIM and now > step.time_ns:
            found.append(_step_span(step, entry.launched_ns))
            step = None
        slot = entry.arguments[0]
        if entry.event in (Event.DECODE, Event.PREFILL):
            step = entry
        elif entry.event == Event.CLAIM:
            phases[slot] = ("waiting", now, arguments_of(entry))
        elif entry.event == Event.ADMIT:
            if slot in phases:
                close(slot, now)
            phases[slot] = ("in service", now, arguments_of(entry))
        elif entry.event == Event.PREEMPT:
            if slot in phases:
                close(slot, now, tokens_so_far=entry.arguments[2])
            phases[slot] = ("preempted", now, {"slot": slot})
        elif entry.event == Event.FINISH and slot in phases:
            close(slot, now, **{k: v for k, v in arguments_of(entry).items() if k in ("tokens", "reason")})
    if step is not None and last > step.time_ns:
        found.append(_step_span(step, last))
    for slot in list(phases):
        close(slot, last, unfinished=True)
    return found


def _step_span(step: Entry, end: int) -> Span:
    size = step.arguments[1]
    name = f"decode {size}" if step.event == Event.DECODE else f"prefill {size}"
    return Span(name, SCHEDULER, STEPS, step.launched_ns, end, arguments_of(step))


def perfetto(entries: Iterable[Entry]) -> dict[str, Any]:
    """The entries as a Chrome trace, which https://ui.perfetto.dev opens.

    Returns
    -------
    dict
        ``{"traceEvents": […], "displayTimeUnit": "ns"}``; times in microseconds from the first entry.
    """
    entries = list(entries)
    if not entries:
        raise ValueError("the flight recorder is empty: the scheduler has decided nothing yet")
    origin = entries[0].time_ns
    events: list[dict[str, Any]] = [
        _name("process_name", SCHEDULER, 0, "scheduler"),
        _name("process_name", REQUESTS, 0, "requests by slot"),
        _name("thread_name", SCHEDULER, STEPS, "steps"),
        _name("thread_name", SCHEDULER, EVENTS, "decisions"),
    ]
    for span in spans(entries):
        events.append({
            "name": span.name, "ph": "X", "pid": span.process, "tid": span.track,
            "ts": (span.start_ns - origin) / 1e3, "dur": (span.end_ns - span.start_ns) / 1e3,
            "args": span.arguments,
        })  # fmt: skip
    for entry in entries:
        if entry.event not in (Event.DECODE, Event.PREFILL):
            events.append({
                "name": entry.event.name.lower(), "ph": "i", "s": "t", "pid": SCHEDULER, "tid": EVENTS,
                "ts": (entry.time_ns - origin) / 1e3, "args": arguments_of(entry),
            })  # fmt: skip
    events += _counters(entries, origin)
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _name(kind: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}


def _counters(entries: list[Entry], origin: int) -> list[dict[str, Any]]:
    """Requests waiting and in service over time, as far as the recording knows of them."""
    waiting, seated, counted = 0, 0, []
    for entry in entries:
        before = (waiting, seated)
        if entry.event == Event.CLAIM:
            waiting += 1
        elif entry.event == Event.ADMIT:
            waiting, seated = max(waiting - 1, 0), seated + 1
        elif entry.event == Event.PREEMPT:
            waiting, seated = waiting + 1, max(seated - 1, 0)
        elif entry.event == Event.FINISH:
            if entry.arguments[1] >= 0:
                seated = max(seated - 1, 0)
            else:
                waiting = max(waiting - 1, 0)
        if (waiting, seated) != before:
            counted.append({
                "name": "requests", "ph": "C", "pid": SCHEDULER, "ts": (entry.time_ns - origin) / 1e3,
                "args": {"waiting": waiting, "in service": seated},
            })  # fmt: skip
    return counted


def save_perfetto(entries: Iterable[Entry], path: Path | str) -> None:
    """Write `perfetto` as JSON."""
    Path(path).write_text(json.dumps(perfetto(entries)))


def frame(entries: Iterable[Entry]) -> pandas.DataFrame:
    """One row an entry: number, seconds since the first, event, and its arguments by name.

    Raises
    ------
    RuntimeError
        pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise RuntimeError("a DataFrame needs pandas: pip install 'blink-numba[notebook]'") from error
    entries = list(entries)
    origin = entries[0].time_ns if entries else 0
    rows = [{"number": e.number, "time_s": (e.time_ns - origin) / 1e9, "event": e.event.name,
             **arguments_of(e)} for e in entries]  # fmt: skip
    return pandas.DataFrame(rows).convert_dtypes()


def step_durations(entries: Iterable[Entry]) -> list[tuple[str, int, int]]:
    """``(kind, size, nanoseconds)`` of each step: ``"decode"`` rows or ``"prefill"`` tokens."""
    found = []
    for span in spans(entries):
        if span.process == SCHEDULER:
            size = span.arguments.get("batch", span.arguments.get("tokens", 0))
            found.append((span.name.split()[0], size, span.end_ns - span.start_ns))
    return found
