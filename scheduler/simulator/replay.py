"""Replaying a flight recorder: the same arrivals at the same times, decision for decision.

Whatever ran (CPU threads, the kernel on a GPU) wrote down what it claimed and what it decided,
with the time of the turn. Those claims, times and ends of answers are fed to another instance
of the scheduler, which must decide the same: whom to admit to which seat, which graph, how many
rows or tokens, whom to preempt. That instance is the compiled step, or the plain Python copy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

import numba
import numpy as np

from graphs.grid import EXECS, shapes, table_view
from graphs.launcher import launcher_view
from graphs.step_io import EngineSpec, step_view
from ring import layout as at
from ring.jit import njit
from ring.layout import RingGeometry
from ring.recorder import Entry, Event
from ring.states import Reason
from ring.views import ring_view
from ring.words import CANCEL, SLOTS_PER_DOORBELL, SUBMIT
from scheduler import state as sc
from scheduler.policy import FUNCTIONS, Policy
from scheduler.turn import solo_turn

PLAIN_TOKEN, END_TOKEN = 0, 1
# what depends on the machine, not on the scheduler's decisions
_NOT_COMPARED = (Event.RETRY,)
_ENDS_REPLAY = (Event.FAULT, Event.STOP, Event.DRAINED, Event.POLICY)


@dataclass(frozen=True)
class Asked:
    """A request as its front end put it into a slot."""

    prompt_tokens: int
    max_tokens: int
    min_tokens: int = 0
    priority: int = 0
    tenant: int = 0
    deadline_ns: int = 0


@dataclass(frozen=True)
class Difference:
    """The first place where two instances of the scheduler decided differently."""

    number: int
    recorded: Entry | None
    replayed: Entry | None

    def __str__(self) -> str:
        def show(entry: Entry | None) -> str:
            return "nothing" if entry is None else f"{entry.event.name}{entry.arguments}"

        return f"decision {self.number}: recorded {show(self.recorded)}, replayed {show(self.replayed)}"


class ReplayError(ValueError):
    """A recording cannot be replayed; the message says why."""


@cache
def _compiled_turn() -> Callable[..., int]:
    """One turn on words, with a policy's functions as pointers."""
    from numba.core import types

    from scheduler.build import NARROW, POINTERS
    from scheduler.policy_check import WORDS

    function = njit(_turn_on_words)
    function.compile((WORDS, NARROW, WORDS, WORDS, WORDS, WORDS, *POINTERS, types.int64))
    function.disable_compile()
    return function


def _turn_on_words(
    words,
    narrow,
    state_words,
    step_words,
    table_words,
    launcher_words,
    key,
    may_admit,
    prefill_or_decode,
    victim,
    now,
):
    return solo_turn(
        ring_view(words, narrow),
        sc.state_view(state_words),
        step_view(step_words),
        table_view(table_words),
        launcher_view(launcher_words),
        key,
        may_admit,
        prefill_or_decode,
        victim,
        now,
    )


class Replay:
    """An instance of the scheduler that is told what happened.

    Parameters
    ----------
    spec : EngineSpec
        As recorded; its end-of-sequence ids do not matter.
    geometry : RingGeometry
        As recorded.
    policy : Policy
    copy : ring.python_copy.PythonCopy, optional
        Run the plain Python of that copy; None: the compiled step.
    """

    def __init__(self, spec: EngineSpec, geometry: RingGeometry, policy: Policy, copy: Any = None) -> None:
        module = importlib.import_module if copy is None else copy.module
        self._spec = EngineSpec(**{**spec.__dict__, "eos_ids": (END_TOKEN,)})
        self._grid, self._steps = module("graphs.grid"), module("graphs.step_io")
        self._launching, self._recorder = module("graphs.launcher"), module("ring.recorder")
        self._words_of, self._loop = module("ring.words"), module("scheduler.loops.cpu")
        states, views = module("scheduler.state"), module("ring.views")
        self._words = np.zeros(geometry.words(), np.int64)
        views.format_ring(self._words, module("ring.layout").RingGeometry(**geometry.__dict__))
        self._state_words = states.make_state(self._spec, geometry, step_deadline_s=1e9)
        self._io_words = np.zeros(self._steps.step_words(self._spec), np.int64)
        self._steps.format_step(self._io_words, self._spec)
        self._table_words = self._grid.make_table(self._spec)
        self._launcher_words = self._launching.make_launcher(EXECS * len(shapes(spec)))
        self.ring = views.host_view(self._words)
        self.state = states.state_view(self._state_words)
        self.io = self._steps.step_view(self._io_words)
        self._table = self._grid.table_view(self._table_words)
        self._launcher = self._launching.launcher_view(self._launcher_words)
        module("scheduler.policy").install(self.state, policy)
        self._turn = self._compiled(policy) if copy is None else self._plain(policy, copy)
        self._extent = (geometry.arena_share // geometry.slots_per_front_end, geometry.slots_per_front_end)
        self._taken = 0
        self._in_flight: int | None = None
        self._ends: dict[int, tuple[int, bool]] = {}  # slot: tokens of its answer, ended by a token

    def _compiled(self, policy: Policy) -> Callable[[int], int]:
        from scheduler.policy_check import pointers

        turn, functions = _compiled_turn(), pointers(policy)
        narrow = self._words.view(np.int32)
        return lambda now: turn(
            self._words,
            narrow,
            self._state_words,
            self._io_words,
            self._table_words,
            self._launcher_words,
            *functions,
            now,
        )

    def _plain(self, policy: Policy, copy: Any) -> Callable[[int], int]:
        turn, functions = copy.module("scheduler.turn").turn, plain_functions(policy, copy)
        return lambda now: turn(
            self.ring, self.state, self.io, self._table, self._launcher, *functions, 0, 1, now
        )

    # --- what the recording says happened ---

    def claim(self, entry: Entry, asked: Asked, end: tuple[int, Reason]) -> None:
        """Submit what `entry` says was claimed; `end` is how long its answer was and why it ended."""
        slot, incarnation = entry.arguments[0], entry.arguments[1]
        share, slots = self._extent
        start = (slot // slots) * share * slots + (slot % slots) * share
        fields = {
            at.Q_PROMPT_START: start,
            at.Q_PROMPT_LEN: asked.prompt_tokens,
            at.Q_OUTPUT_START: start + asked.prompt_tokens,
            at.Q_MAX_TOKENS: asked.max_tokens,
            at.Q_MIN_TOKENS: asked.min_tokens,
            at.Q_DEADLINE_NS: asked.deadline_ns,
            at.Q_PRIORITY: asked.priority,
            at.Q_TENANT: asked.tenant,
            at.Q_STOP_COUNT: 0,
            at.Q_FLAGS: 0 if end[1] == Reason.STOP else at.FLAG_IGNORE_EOS,
        }
        for word, value in fields.items():
            self.ring.descriptor[slot * at.DESCRIPTOR_WORDS + word] = value
        self._ends[slot] = (end[0], end[1] == Reason.STOP)
        self.ring.req[slot] = self._words_of.pack_req(incarnation, SUBMIT)
        bit = 1 << (slot % SLOTS_PER_DOORBELL)
        word = int(self.ring.doorbell[slot // SLOTS_PER_DOORBELL])
        self.ring.doorbell[slot // SLOTS_PER_DOORBELL] = word | bit if incarnation & 1 else word & ~bit

    def cancel(self, slot: int) -> None:
        """Its front end wants no more of it."""
        incarnation = self._words_of.req_incarnation(int(self.ring.req[slot]))
        self.ring.req[slot] = self._words_of.pack_req(incarnation, CANCEL)

    def end_step(self) -> None:
        """The engine is done with the step in flight, if there is one."""
        if self._in_flight is None:
            return
        executable, graph = self._in_flight, self._in_flight // EXECS
        if self._table.kind[graph] == self._grid.DECODE:
            seats = [int(seat) for seat in self.io.decode_rows[: self._table.shape[graph]] if seat >= 0]
        else:
            seats = [int(seat) for seat, samples in zip(self.io.run_seat, self.io.run_samples) if samples]
        for seat in seats:
            here = seat * sc.SEAT_WORDS
            length, by_token = self._ends[int(self.state.seats[here + sc.SE_SLOT])]
            last = int(self.state.seats[here + sc.SE_GENERATED]) + 1 == length
            self.io.out_token[seat] = END_TOKEN if last and by_token else PLAIN_TOKEN
        self.io.control[self._steps.DONE] = self.io.control[self._steps.TICKET]
        self._launching.retire(self._launcher, executable)
        self._in_flight = None

    def turn(self, now: int) -> int:
        """One turn at a time of the recording; a window that it closes is closed."""
        verdict = int(self._turn(now))
        if verdict == sc.STEPPED:
            self._in_flight = int(self._launching.peek(self._launcher, self._taken))
            self._taken += 1
        elif verdict == sc.CLOSE_WINDOW:
            self._loop.close_window(self.ring, self.state, self._launcher, now)
        return verdict

    def entries(self) -> list[Entry]:
        """What this instance decided."""
        return [
            Entry(e.number, e.time_ns, Event(int(e.event)), e.arguments).decision
            for e in self._recorder.entries(self.ring.flight)
        ]


def plain_functions(policy: Policy, copy: Any) -> tuple[Callable[..., Any], ...]:
    """A policy's functions as plain Python over the modules of a copy, whoever wrote them."""
    module = copy.module("scheduler.policy")
    bodies = {kind: _rebound(body, copy) for kind, body in policy.sources.items()}
    settings: Any = numba.config
    disabled = settings.DISABLE_JIT
    settings.DISABLE_JIT = True  # as while the copy's modules are loaded
    try:
        mine = module.policy(name=policy.name, **bodies) if bodies else module.FCFS
    finally:
        settings.DISABLE_JIT = disabled
    return tuple(getattr(mine, kind) for kind in FUNCTIONS)


def _rebound(function: Callable[..., Any], copy: Any) -> Callable[..., Any]:
    """A compiled function's Python body whose globals lead to the copy's."""
    body = getattr(function, "py_func", function)
    names = dict(body.__globals__)
    for name in body.__code__.co_names:
        value: Any = names.get(name)
        original = getattr(value, "py_func", None)
        if original is None:
            continue
        home = original.__module__ or ""
        inside = home.split(".")[0] in ("ring", "scheduler", "graphs")
        names[name] = getattr(copy.module(home), name) if inside else _rebound(value, copy)
    return FunctionType(body.__code__, names, body.__name__, body.__defaults__, body.__closure__)


def _before_boundary(entry: Entry) -> bool:
    """Whether a turn that finds a step still running may record this: a claim, its end if it was in vain."""
    return entry.event == Event.CLAIM or (entry.event == Event.FINISH and entry.arguments[1] < 0)


def turns_of(recording: Iterable[Entry]) -> list[list[Entry]]:
    """Entries by the turn that made them: equal times, claims first."""
    turns: list[list[Entry]] = []
    for entry in recording:
        same = turns and turns[-1][-1].time_ns == entry.time_ns
        begins = entry.event == Event.CLAIM and turns and not _before_boundary(turns[-1][-1])
        if not same or begins or turns[-1][-1].event == Event.WINDOW:
            turns.append([])
        turns[-1].append(entry)
    return turns


def replay(
    recording: list[Entry],
    asked: Mapping[tuple[int, int], Asked],
    spec: EngineSpec,
    geometry: RingGeometry,
    policy: Policy,
    *,
    copy: Any = None,
) -> Difference | None:
    """Replay a recording; the first difference, None if every decision is the same.

    Parameters
    ----------
    recording : list of Entry
        From the scheduler's first decision on (`ring.recorder.entries`), without gaps. It is
        followed up to a fault, a stop or a swap of the policy.
    asked : mapping of (slot, incarnation) to Asked
        What was submitted.

    Raises
    ------
    ReplayError
        The recording begins late, has gaps, or names a request that is not in `asked`.
    """
    recording = [entry.decision for entry in _whole(recording)]
    ends = _ends(recording)
    geometry = RingGeometry(
        **{**geometry.__dict__, "flight_entries": 1 << max(len(recording) * 2, 64).bit_length()}
    )
    other = Replay(spec, geometry, policy, copy)
    for turn in turns_of(recording):
        for entry in turn:
            if entry.event == Event.CLAIM:
                key = (entry.arguments[0], entry.arguments[1])
                if key not in asked:
                    raise ReplayError(
                        f"the recording claims slot {key[0]}, incarnation {key[1]}: not among those asked"
                    )
                other.claim(entry, asked[key], ends.get(entry.number, (1 << 40, Reason.NONE)))
            elif entry.event == Event.FINISH and entry.arguments[3] == Reason.CANCELLED:
                other.cancel(entry.arguments[0])
        if not all(_before_boundary(entry) for entry in turn):
            other.end_step()
        other.turn(turn[0].time_ns)
    return _first_difference(recording, other.entries())


def _whole(recording: list[Entry]) -> list[Entry]:
    if not recording or recording[0].number != 0:
        raise ReplayError(
            "the recording does not begin with the scheduler's first decision: record more entries"
        )
    kept = []
    for place, entry in enumerate(recording):
        if entry.number != place:
            raise ReplayError(f"the recording has a gap before entry {entry.number}")
        if entry.event in _ENDS_REPLAY:
            break
        kept.append(entry)
    while kept and kept[-1].event == Event.CLAIM:
        kept.pop()  # a turn that was cut off
    return [entry for entry in kept if entry.event not in _NOT_COMPARED]


def _ends(recording: list[Entry]) -> dict[int, tuple[int, Reason]]:
    """How each answer ended, by the number of its claim."""
    claims: dict[int, int] = {}
    ends = {}
    for entry in recording:
        if entry.event == Event.CLAIM:
            claims[entry.arguments[0]] = entry.number
        elif entry.event == Event.FINISH:
            ends[claims[entry.arguments[0]]] = (entry.arguments[2], Reason(entry.arguments[3]))
    return ends


def _first_difference(recorded: list[Entry], replayed: list[Entry]) -> Difference | None:
    replayed = [entry for entry in replayed if entry.event not in _NOT_COMPARED]
    for place, entry in enumerate(recorded):
        other = replayed[place] if place < len(replayed) else None
        if other is None or (entry.event, entry.arguments) != (other.event, other.arguments):
            return Difference(entry.number, entry, other)
    return None
