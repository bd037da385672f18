"""The model's world: actors over shared memory, one transition at a time, and back again.

An actor runs the real protocol functions in a greenlet and parks before each access to a
word that others may touch; a transition lets one actor make that access and run on to its
next. What an actor does between two loop heads depends only on its private words at the
first and on what its accesses brought since. So an actor's place is (private words at its
loop head, results since), and any place can be entered again by running its code from the
head with these results fed to it. States that agree in memory, knowledge and places are one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, greenlet

from blink_numba.verify.memory import Knowledge, Shared
from blink_numba.verify.places import (
    BARRIER,
    CHOICE,
    CRASH,
    DEAD,
    DONE,
    HEAD,
    RESULT,
    RUN,
    Actor,
    Place,
    State,
    Step,
)


class World:
    """Memory, actors and the hooks of the atomics.

    Attributes
    ----------
    ghost : list of int
        What the invariants remember.
    steps : list of Step
        Accesses so far, when `telling`.
    """

    def __init__(self) -> None:
        self.memory: list[int] = []
        self.writers: list[int] = []
        self.actors: list[Actor] = []
        self.ghost: list[int] = []
        self.knowledge: Knowledge = Knowledge(0, 0, str)
        self.telling = False
        self.steps: list[Step] = []
        self.watchers: dict[int, Callable[[int, int, int], None]] = {}
        self.between_barriers: dict[tuple[int, int], tuple[int, str]] = {}
        self.current: Actor = None  # type: ignore[assignment]
        self.lane = 0
        self._hub: Any = None
        self._places: list[Place] = []
        self._origin: State | None = None
        self._payload_names: list[str] = []

    # --- building ------------------------------------------------------------------------------

    def word(
        self, array: Shared, index: int, kind: int, value: int = 0, payload: int = -1, writer: int = -1
    ) -> int:
        """Model a word of a shared array; its number.

        `writer` is the one actor that writes the word, if it has one lane: between its own accesses
        nothing happens to the word, so its reads are no switch points.
        """
        at = len(self.memory)
        self.memory.append(value)
        self.writers.append(writer)
        array.where[index], array.kind[index], array.group[index] = at, kind, payload
        self.knowledge.new_word()
        return at

    def payload(self, name: str) -> int:
        """A new payload, checked for races as a whole."""
        self._payload_names.append(name)
        return self.knowledge.new_payload()

    def open(self, agents: int, fencing: int) -> None:
        """Begin to build a world of so many agents, the first `fencing` of which use fences."""
        self.knowledge = Knowledge(agents, fencing, lambda payload: self._payload_names[payload])

    def add(self, actor: Actor) -> None:
        """Add an actor."""
        actor.index = len(self.actors)
        actor.first_agent = sum(other.lanes for other in self.actors)
        self.actors.append(actor)

    @property
    def agent(self) -> int:
        return self.current.first_agent + self.lane

    # --- states --------------------------------------------------------------------------------

    def start(self) -> State:
        """The initial state: every running actor before its first shared access."""
        if self._origin is None:
            heads = [
                Place(actor.initial, actor.save(), ((),) * actor.lanes, (), (), 0) for actor in self.actors
            ]
            self._origin = State(
                tuple(self.memory), self.knowledge.save(), tuple(heads), tuple(self.ghost), ()
            )
        self.restore(self._origin)
        self._places = list(self._origin.places)
        for actor, place in zip(self.actors, self._origin.places, strict=True):
            if place.status == RUN:
                self._enter(actor, place)
        return self.snapshot()

    def snapshot(self) -> State:
        """The present state."""
        memory, knowledge = tuple(self.memory), self.knowledge.save()
        places, ghost = tuple(self._places), tuple(self.ghost)
        key = (hash(memory), hash(knowledge), hash(ghost), *(place.key for place in places))
        return State(memory, knowledge, places, ghost, key)

    def restore(self, state: State) -> None:
        """Go to a state. Actors are brought to their places when they next move."""
        self.memory[:] = state.memory
        self.knowledge.load(state.knowledge)
        self.ghost[:] = state.ghost

    def moves(self, state: State) -> list[tuple[int, int]]:
        """(actor, choice) of every transition of a state."""
        found = []
        for actor, place in zip(self.actors, state.places, strict=True):
            if place.status == RUN:
                found.extend((actor.index, option) for option in place.options)
                if actor.may_crash:
                    found.append((actor.index, CRASH))
        return found

    def move(self, state: State, actor_index: int, choice: int) -> State:
        """Make one transition from a state that `restore` or the last `move` left."""
        actor, place = self.actors[actor_index], state.places[actor_index]
        self._places = list(state.places)
        if choice == CRASH:
            self._crash(actor)
        else:
            if actor.entered is not place or not actor.threads:
                self._enter(actor, place)
            self._advance(actor, choice)
        return self.snapshot()

    def _crash(self, actor: Actor) -> None:
        self._leave(actor)
        self.tell(actor, "dies")
        self._stand(actor, Place(DEAD, (), (), (), (), hash((DEAD, actor.index))))
        self.on_crash(actor)

    def on_crash(self, actor: Actor) -> None:
        """What the world does when an actor died."""

    def awake(self, actor: Actor) -> None:
        """Let an actor that was OFF begin."""
        self._enter(actor, self._places[actor.index]._replace(status=RUN))

    # --- running actors --------------------------------------------------------------------------

    def _leave(self, actor: Actor) -> None:
        for thread in actor.threads:
            if not thread.dead:
                thread.throw(GreenletExit)
        actor.threads = []

    def _enter(self, actor: Actor, place: Place) -> None:
        """Bring an actor's greenlets to a place by feeding them its log."""
        self._leave(actor)
        actor.load(place.head)
        actor.head = place.head
        actor.entering = True
        actor.logs = [list(log) for log in place.log]
        actor.fed = [0] * actor.lanes
        actor.order = []
        actor.waits = [RESULT] * actor.lanes
        actor.threads = [greenlet(actor.body) for _ in range(actor.lanes)]
        for lane in range(actor.lanes):
            self._resume(actor, lane, lane)
        if actor.lanes > 1:
            self._pass_barriers(actor)
            for lane in place.order:
                self._advance_lane(actor, lane)
        self._note_place(actor)

    def _resume(self, actor: Actor, lane: int, value: int = 0) -> None:
        self._hub = greenlet.getcurrent()
        self.current, self.lane = actor, lane
        actor.waits[lane] = RESULT
        actor.threads[lane].switch(value)

    def _advance(self, actor: Actor, choice: int) -> None:
        self.knowledge.begin()
        if actor.lanes > 1:
            self._advance_lane(actor, choice)
        else:
            actor.picked = choice
            self._resume(actor, 0)
        self._note_place(actor)

    def _advance_lane(self, actor: Actor, lane: int) -> None:
        actor.order.append(lane)
        self._resume(actor, lane)
        self._pass_barriers(actor)

    def _pass_barriers(self, actor: Actor) -> None:
        """While all lanes stand at a barrier (a loop head is one), let them pass."""
        while all(wait in (HEAD, BARRIER) for wait in actor.waits):
            if actor.waits[0] == HEAD and not actor.entering:
                self._at_head(actor)
            actor.entering = False
            self.between_barriers.clear()
            if actor.fed == [len(log) for log in actor.logs]:
                self.knowledge.meet(range(actor.first_agent, actor.first_agent + actor.lanes))
            for lane in range(actor.lanes):
                self._resume(actor, lane)

    def _at_head(self, actor: Actor) -> None:
        actor.head = actor.save()
        actor.logs = [[] for _ in range(actor.lanes)]
        actor.fed = [0] * actor.lanes
        actor.order = []

    def _note_place(self, actor: Actor) -> None:
        if all(thread.dead for thread in actor.threads):
            actor.threads = []
            final = actor.save()
            self._stand(actor, Place(DONE, final, (), (), (), hash((DONE, final))))
            return
        log, order = tuple(tuple(log) for log in actor.logs), tuple(actor.order)
        if actor.lanes > 1:
            options = tuple(lane for lane in range(actor.lanes) if actor.waits[lane] not in (HEAD, BARRIER))
            waits = tuple(actor.waits)
        else:
            wait = actor.waits[0]
            options, waits = (tuple(range(int(wait[len(CHOICE) :]))) if wait.startswith(CHOICE) else (0,)), ()
        self._stand(actor, Place(RUN, actor.head, log, order, options, hash((actor.head, log, order, waits))))

    def _stand(self, actor: Actor, place: Place) -> None:
        actor.entered = self._places[actor.index] = place

    def _park(self, wait: str = RESULT) -> None:
        actor, lane = self.current, self.lane
        actor.waits[lane] = wait
        self._hub.switch()
        self.current, self.lane = actor, lane

    # --- what actors call ------------------------------------------------------------------------

    def head(self) -> None:
        """A loop head: only private words are carried over it."""
        actor = self.current
        if actor.lanes > 1:
            self._park(HEAD)
        elif actor.fed[0] == len(actor.logs[0]):
            self._at_head(actor)

    def choose(self, count: int) -> int:
        """One of 0 … count-1, any of them."""
        if count == 1:
            return 0
        actor = self.current
        log = actor.logs[0]
        if actor.fed[0] < len(log):
            actor.fed[0] += 1
            return log[actor.fed[0] - 1]
        self._park(f"{CHOICE}{count}")
        log.append(actor.picked)
        actor.fed[0] += 1
        return actor.picked

    def _fed(self) -> tuple[bool, Any]:
        """The result that is fed to the lane, if it is behind its log."""
        actor, lane = self.current, self.lane
        at = actor.fed[lane]
        log = actor.logs[lane]
        if at < len(log):
            actor.fed[lane] = at + 1
            return True, log[at]
        return False, None

    def _log(self, result: Any) -> Any:
        self.current.logs[self.lane].append(result)
        self.current.fed[self.lane] += 1
        return result

    def once(self, happening: Callable[[], None]) -> None:
        """Something that happens with the moves of an actor, not when a place is entered again."""
        if not self._fed()[0]:
            happening()
            self._log(None)

    # --- telling ---------------------------------------------------------------------------------

    def tell(self, actor: Actor, text: str) -> None:
        if self.telling:
            name = actor.name if actor.lanes == 1 else f"{actor.name} lane {self.lane}"
            self.steps.append(Step(name, text))

    def show(self, name: str, index: int, value: int) -> str:
        """A word and its meaning."""
        return f"{name}[{index}] = {value}"
