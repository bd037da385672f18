"""`simulate`: from arrays of requests to what became of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numba
import numpy as np

from graphs.grid import EXECS, make_table, shapes
from graphs.launcher import make_launcher
from graphs.step_io import EngineSpec, format_step, step_view, step_words
from ring.jit import njit
from ring.layout import RingGeometry
from ring.views import format_ring
from scheduler import state as sc
from scheduler.build import NARROW, POINTERS, set_up
from scheduler.policy import FCFS, Policy
from scheduler.policy_check import WORDS, pointers
from scheduler.simulator import core, events
from scheduler.simulator.events import Events, StepTimes

DEFAULT_SLOTS = 4096
TOKEN = 7  # what every step samples; no id ends an answer here


class SimulationError(RuntimeError):
    """A simulation cannot go on; the message says why."""


@dataclass(frozen=True)
class Requests:
    """What arrives; arrays of equal length, int64, times in nanoseconds.

    Attributes
    ----------
    arrive : int64[n]
        Ascending. In a closed loop: the time its user thinks before sending it.
    prompt, output : int64[n]
        Tokens of prompt and answer, at least 1.
    priority, tenant, deadline : int64[n]
        `deadline` is a duration, 0 for none.
    users : int
        0 for open arrivals; else how many users send their next request after an answer.
    """

    arrive: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    priority: np.ndarray
    tenant: np.ndarray
    deadline: np.ndarray
    users: int = 0

    @classmethod
    def of(
        cls,
        arrive: Any,
        prompt: Any,
        output: Any,
        *,
        priority: Any = 0,
        tenant: Any = 0,
        deadline: Any = 0,
        users: int = 0,
    ) -> Requests:
        """From anything that numpy broadcasts to ``n`` whole numbers."""
        moments = np.asarray(arrive)
        if moments.size and not (
            np.isfinite(moments).all() and 0 <= moments.min() <= moments.max() < 1 << 62
        ):
            raise ValueError("arrive must be nanoseconds from 0 on, below 2**62")
        arrive = np.array(moments, np.int64, order="C")
        if arrive.ndim != 1 or arrive.shape[0] == 0:
            raise ValueError(f"arrive must be a row of times, got shape {arrive.shape}")
        columns = [
            np.array(np.broadcast_to(np.asarray(column, np.int64), arrive.shape), order="C")
            for column in (prompt, output, priority, tenant, deadline)
        ]
        if users == 0 and np.any(np.diff(arrive) < 0):
            raise ValueError("arrive must ascend: requests are numbered in the order of arrival")
        for name, column in zip(("prompt", "output"), columns):
            if column.min() < 1:
                raise ValueError(f"{name} must be at least 1 token, got {column.min()}")
        return cls(arrive, *columns, users=users)

    def __len__(self) -> int:
        return int(self.arrive.shape[0])


@dataclass(frozen=True)
class Outcome:
    """What became of the requests; times in nanoseconds on the virtual clock.

    Attributes
    ----------
    requests : Requests
        With the true arrivals, also of a closed loop.
    seated, first, done : int64[n]
        First seat, first token, end; -1 where it never came.
    reason : int64[n]
        `ring.states.Reason`.
    preempted : int64[n]
        How often it lost its seat.
    gaps : int64[events.BUCKETS]
        Histogram of the time between tokens (`scheduler.simulator.events`).
    series : int64[m, events.SERIES_WORDS]
        Time, kind, rows or runs, tokens, waiting, free blocks of every `every`-th step.
    counts : dict
        ``steps``, ``decodes``, ``prefills``, ``busy_ns``, ``prefill_ns``, ``gap_ns``, ``rows_ns``,
        ``turns``, ``preemptions``, ``clock_ns``.
    wall_s : float
        What the simulation took, compilation excluded.
    flight : int64[entries * 8]
        The flight recorder at the end.
    """

    requests: Requests
    policy: Policy
    spec: EngineSpec
    seated: np.ndarray
    first: np.ndarray
    done: np.ndarray
    reason: np.ndarray
    preempted: np.ndarray
    gaps: np.ndarray
    series: np.ndarray
    counts: dict[str, int]
    wall_s: float
    flight: np.ndarray = field(repr=False)

    @property
    def steps_per_second(self) -> float:
        """Simulated steps in a second of wall time."""
        return self.counts["steps"] / self.wall_s


@cache
def compiled() -> Callable[..., int]:
    """The event loop for any policy: compiled once, kept in the cache folder."""
    row, floats = WORDS, numba.types.Array(numba.types.float64, 1, "C")
    events_type = numba.types.NamedUniTuple(row, len(Events._fields), Events)
    times_type = numba.types.NamedUniTuple(floats, len(StepTimes._fields), StepTimes)
    function = njit(core.run.py_func)
    function.compile((WORDS, NARROW, WORDS, WORDS, WORDS, WORDS, events_type, times_type, *POINTERS))
    function.disable_compile()
    return function


def simulate(
    requests: Requests,
    spec: EngineSpec,
    times: StepTimes,
    policy: Policy = FCFS,
    *,
    slots: int = DEFAULT_SLOTS,
    seed: int = 0,
    every: int = 0,
    most_steps: int = 1 << 40,
    flight_entries: int = 1 << 12,
) -> Outcome:
    """Run the scheduler on a virtual clock.

    Parameters
    ----------
    requests : Requests
    spec : EngineSpec
        Seats, grid of shapes, KV blocks.
    times : StepTimes
        How long steps take.
    policy : Policy
    slots : int
        Slots of the ring; requests that find it full wait before it, in order.
    seed : int
        Of the gaps between steps.
    every : int
        Note every so many steps in `Outcome.series`; 0: none.
    most_steps : int
        End with an error after that many.

    Raises
    ------
    SimulationError
        A request does not fit the engine, the policy admits nobody for ever, or too many steps.
    """
    for name, given, kind in (
        ("policy", policy, Policy),
        ("times", times, StepTimes),
        ("spec", spec, EngineSpec),
    ):
        if not isinstance(given, kind):
            raise SimulationError(f"{name} must be a {kind.__name__}, got {type(given).__name__}")
    _check_fit(requests, spec)
    loop, functions = compiled(), pointers(policy)
    longest = int((requests.prompt + requests.output).max())
    geometry = RingGeometry(
        slots=slots, arena_tokens=slots * longest, log_entries=4096, flight_entries=flight_entries
    )
    words = np.zeros(geometry.words(), np.int64)
    format_ring(words, geometry)
    state = sc.make_state(spec, geometry, step_deadline_s=1e9)
    set_up(state, policy)
    io = np.zeros(step_words(spec), np.int64)
    format_step(io, spec)
    step_view(io).out_token[:] = TOKEN
    launcher = make_launcher(EXECS * len(shapes(spec)))
    memory = _memory(requests, spec, slots, longest, seed, every, most_steps)
    began = time.perf_counter()
    ended = loop(
        words, words.view(np.int32), state, io, make_table(spec), launcher, memory, times, *functions
    )
    wall = time.perf_counter() - began
    _check_end(ended, memory, policy, state)
    return _outcome(requests, policy, spec, memory, wall, words, geometry)


def _check_fit(requests: Requests, spec: EngineSpec) -> None:
    if spec.eos_ids:
        raise SimulationError("an engine to simulate has no end-of-sequence ids: answers have their length")
    longest = requests.prompt + requests.output
    if longest.max() > spec.max_model_len:
        request = int(longest.argmax())
        raise SimulationError(
            f"request {request} has {longest[request]} tokens, the engine's max_model_len is "
            f"{spec.max_model_len}: clip the lengths (their `longest`) or simulate a longer context"
        )


def _memory(
    requests: Requests, spec: EngineSpec, slots: int, extent: int, seed: int, every: int, most_steps: int
) -> Events:
    count = len(requests)
    capacity = min(most_steps, 1 << 20) if every else 0
    options = np.zeros(events.OPTION_WORDS, np.int64)
    options[:5] = requests.users, every, seed, most_steps, extent
    counts = np.zeros(events.COUNT_WORDS, np.int64)
    counts[events.N_FREE_SLOTS] = slots
    users = min(requests.users, count)
    thinking = np.zeros(2 * max(users, 1), np.int64)
    if users:
        order = np.argsort(requests.arrive[:users], kind="stable")
        thinking[0 : 2 * users : 2], thinking[1 : 2 * users : 2] = requests.arrive[order], order
        counts[events.N_THINKING] = counts[events.N_NEXT] = users
    never = [np.full(count, -1, np.int64) for _ in range(4)]
    return Events(
        requests.arrive.copy(),
        requests.prompt,
        requests.output,
        requests.priority,
        requests.tenant,
        requests.deadline,
        *never,
        np.zeros(count, np.int64),
        np.zeros(events.BUCKETS, np.int64),
        _edges(),
        np.zeros(capacity * events.SERIES_WORDS, np.int64),
        np.full(slots, -1, np.int64),
        np.zeros(slots, np.int64),
        np.arange(slots - 1, -1, -1),
        np.full(spec.seats, sc.NO_SLOT, np.int64),
        thinking,
        options,
        counts,
    )


def _edges() -> np.ndarray:
    """Where the buckets of gaps begin, in nanoseconds; the first also holds what is shorter."""
    edges = np.rint(1000 * 2 ** (np.arange(events.BUCKETS + 1) / events.BUCKETS_PER_DOUBLING))
    edges[0] = 0
    return edges.astype(np.int64)


def _check_end(ended: int, memory: Events, policy: Policy, state: np.ndarray) -> None:
    if ended == events.OK:
        return
    done, clock = int(memory.counts[events.N_DONE]), int(memory.counts[events.N_CLOCK]) / 1e9
    core_words = sc.state_view(state).core
    reason = {
        events.STUCK: "requests wait, nothing runs, and may_admit says no for an hour",
        events.OUT_OF_STEPS: "the limit of steps is reached",
        events.SCHEDULER_FAULT: f"the scheduler faulted with error {int(core_words[sc.K_ERROR])}",
    }[ended]
    raise SimulationError(f"policy {policy.name!r}: {reason}; {done} requests done at {clock:.1f} s")


def _outcome(
    requests: Requests,
    policy: Policy,
    spec: EngineSpec,
    memory: Events,
    wall: float,
    words: np.ndarray,
    geometry: RingGeometry,
) -> Outcome:
    from ring.views import host_view

    names = {
        "steps": events.N_STEPS,
        "decodes": events.N_DECODES,
        "prefills": events.N_PREFILLS,
        "busy_ns": events.N_BUSY_NS,
        "prefill_ns": events.N_PREFILL_NS,
        "gap_ns": events.N_GAP_NS,
        "rows_ns": events.N_ROWS_NS,
        "turns": events.N_TURNS,
        "preemptions": events.N_PREEMPTED,
        "clock_ns": events.N_CLOCK,
    }
    noted = int(memory.counts[events.N_SERIES]) * events.SERIES_WORDS
    arrived = Requests(
        memory.arrive,
        requests.prompt,
        requests.output,
        requests.priority,
        requests.tenant,
        requests.deadline,
        requests.users,
    )
    return Outcome(
        requests=arrived,
        policy=policy,
        spec=spec,
        seated=memory.seated,
        first=memory.first,
        done=memory.done,
        reason=memory.reason,
        preempted=memory.preempted,
        gaps=memory.gaps,
        series=memory.series[:noted].reshape(-1, events.SERIES_WORDS),
        counts={name: int(memory.counts[word]) for name, word in names.items()},
        wall_s=wall,
        flight=host_view(words).flight.copy(),
    )
