"""Exhaustive search: every state that a setup can reach, breadth first, once.

Breadth first, so that the first violation found has a shortest story. The graph of states is
kept (numbers only), so that progress can be decided at the end: a state from which no way
leads to the goal is a violation, whatever the schedulers of the actors do.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from blink_numba.verify.memory import Violation
from blink_numba.verify.model import Model
from blink_numba.verify.places import CRASH, State


@dataclass
class Outcome:
    """What a search found.

    Attributes
    ----------
    exhausted : bool
        Whether every state within the bound was seen and all is well.
    states, transitions, goals : int
    executions : int
        Distinct ends: goal states, and states nothing leads out of.
    seconds, cpu_seconds : float
    violation : Violation, optional
    trace : list of (actor, choice)
        A shortest way to it.
    """

    setup: str
    exhausted: bool = False
    states: int = 0
    transitions: int = 0
    goals: int = 0
    executions: int = 0
    deepest: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    violation: Violation | None = None
    trace: list[tuple[int, int]] = field(default_factory=list)


class Explorer:
    """Search of one model.

    Parameters
    ----------
    model : Model
    limit : int
        Most states.
    deadline_s : float
        Most seconds; a search cut short is not exhausted.
    """

    def __init__(
        self, model: Model, *, limit: int = 20_000_000, deadline_s: float = 3600.0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self._limit, self._deadline_s = limit, deadline_s
        self._on_progress = on_progress
        self._numbers: dict[tuple, int] = {}
        self._parents = array("q")
        self._moves = array("h")
        self._edges_from, self._edges_to = array("q"), array("q")
        self._goals: list[int] = []
        self._depth = array("l")

    def run(self) -> Outcome:
        """Search, then decide progress."""
        began, cpu = time.monotonic(), time.process_time()
        outcome = Outcome(self.model.setup.name)
        number, choice = -1, (0, 0)
        try:
            queue: deque[tuple[int, State, int, int]] = deque()
            self._meet(self.model.start(), -1, (0, 0), -1, 0, queue)
            while queue:
                number, state, last, switches = queue.popleft()
                if len(self._numbers) > self._limit or time.monotonic() - began > self._deadline_s:
                    break
                for choice in self.model.moves(state):
                    cost = switches + self._switch_cost(state, last, choice)
                    if (
                        self.model.setup.preemption_bound is not None
                        and cost > self.model.setup.preemption_bound
                    ):
                        continue
                    self.model.restore(state)
                    self._meet(self.model.move(state, *choice), number, choice, choice[0], cost, queue)
                    outcome.transitions += 1
                if self._on_progress is not None and number % 5000 == 0:
                    self._on_progress(len(self._numbers), len(queue))
            else:
                self._decide_progress()
                outcome.exhausted = True
        except Violation as violation:
            outcome.violation = violation
            end = getattr(violation, "state", None)
            outcome.trace = self._trace(end) if end is not None else [*self._trace(number), choice]
        outcome.states, outcome.goals = len(self._numbers), len(self._goals)
        outcome.executions = outcome.goals
        outcome.deepest = max(self._depth, default=0)
        outcome.seconds, outcome.cpu_seconds = time.monotonic() - began, time.process_time() - cpu
        return outcome

    def _switch_cost(self, state: State, last: int, choice: tuple[int, int]) -> int:
        """1 for leaving an actor that could go on, unless it went round its loop for nothing."""
        if self.model.setup.preemption_bound is None or last < 0 or choice[0] == last or choice[1] == CRASH:
            return 0
        place = state.places[last]
        return 1 if place.options and place.log[0] else 0

    def _meet(
        self, state: State, parent: int, move: tuple[int, int], last: int, switches: int, queue: deque
    ) -> None:
        bounded = self.model.setup.preemption_bound is not None
        key = (state.key, last, switches) if bounded else state.key
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            self._parents.append(parent)
            self._moves.append(move[0] * 64 + move[1] + 1)
            self._depth.append(self._depth[parent] + 1 if parent >= 0 else 0)
            if self.model.is_goal(state):
                self._goals.append(number)
                self.model.check_goal(state)
            queue.append((number, state, last, switches))
        if parent >= 0:
            self._edges_from.append(parent)
            self._edges_to.append(number)

    def _decide_progress(self) -> None:
        """Every state must have a way to a goal. (Not under a bound, which cuts ways off.)"""
        if self.model.setup.preemption_bound is not None:
            if not self._goals:
                raise Violation("progress", "no execution within the bound reached the end")
            return
        count = len(self._numbers)
        first = array("q", [-1]) * count
        following = array("q", [-1]) * len(self._edges_from)
        for edge, to in enumerate(self._edges_to):
            following[edge], first[to] = first[to], edge
        good = bytearray(count)
        stack = list(self._goals)
        for number in stack:
            good[number] = 1
        while stack:
            edge = first[stack.pop()]
            while edge >= 0:
                before = self._edges_from[edge]
                if not good[before]:
                    good[before] = 1
                    stack.append(before)
                edge = following[edge]
        bad = good.find(0)
        if bad >= 0:
            violation = Violation("progress", f"no way to the end from here ({good.count(0)} such states)")
            violation.state = bad  # type: ignore[attr-defined]
            raise violation

    def _trace(self, number: int) -> list[tuple[int, int]]:
        trace = []
        while number > 0:
            actor, choice = divmod(self._moves[number], 64)
            trace.append((actor, choice - 1))
            number = self._parents[number]
        return trace[::-1]
