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
from typing import Any, NamedTuple

from greenlet import GreenletExit, greenlet

from blink_numba.verify.memory import DATA, SYNC, FlatRing, Knowledge, LaneWords, Shared, Violation, Words

OFF, RUN, DONE, DEAD = range(4)  # status of an actor
CRASH = -1  # the choice that an actor dies
HEAD, BARRIER, CHOICE, RESULT = "head", "barrier", "choice", "result"


class Place(NamedTuple):
    """Where an actor is.

    `head`: its private words at its loop head. `log`: results of its accesses since, one tuple a
    lane. `order`: lanes in the order they moved since. `options`: what it can do next.
    """

    status: int
    head: tuple
    log: tuple
    order: tuple
    options: tuple
    key: int


class State(NamedTuple):
    """A state of the whole model. `key` identifies it."""

    memory: tuple
    knowledge: tuple
    places: tuple[Place, ...]
    ghost: tuple
    key: tuple


class Step(NamedTuple):
    """One access, for the story."""

    actor: str
    text: str


class Actor:
    """Something that runs protocol code. Subclasses say what, and what is private to it.

    Attributes
    ----------
    name : str
    lanes : int
        Greenlets of this actor; they share its private words.
    """

    name = "actor"
    lanes = 1

    def __init__(self, world: World) -> None:
        self.world = world
        self.index = -1
        self.first_agent = -1
        self.initial = RUN
        self.may_crash = False
        self.entered: Place | None = None  # the place its live greenlets stand at
        self.threads: list[greenlet] = []
        self.logs: list[list] = []
        self.fed: list[int] = []
        self.waits: list[str] = []
        self.order: list[int] = []
        self.head: tuple = ()
        self.picked = 0
        self.entering = False

    def body(self, lane: int) -> None:
        """Run until done; call `World.head` at each loop head."""
        raise NotImplementedError

    def save(self) -> tuple:
        """Private words that matter at the loop head, nested tuples of int."""
        raise NotImplementedError

    def load(self, saved: tuple) -> None:
        """Put them back."""
        raise NotImplementedError


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

    # plain accesses

    def read(self, array: Shared, index: int) -> int:
        if array.where[index] < 0 or index < 0:
            return self._unmodelled(array, index)
        behind, result = self._fed()
        if behind:
            return result
        kind = array.kind[index]
        if kind == SYNC:
            raise Violation("no-data-race", f"plain read of {array.name}[{index}], which others write")
        self.knowledge.read(self.agent, array.group[index])
        return self._log(self.memory[array.where[index]])

    def write(self, array: Shared, index: int, value: int) -> None:
        if array.where[index] < 0 or index < 0:
            self._write_unmodelled(array, index, value)
            return
        if self._fed()[0]:
            return
        if array.kind[index] == SYNC:
            raise Violation("no-data-race", f"plain write of {array.name}[{index}], which others read")
        self.knowledge.write(self.agent, array.group[index])
        self.memory[array.where[index]] = value
        if self.telling:
            self.tell(self.current, f"writes {array.name}[{index}] = {value}")
        self._log(None)

    def _unmodelled(self, array: Shared, index: int) -> int:
        array.check(index)
        return array.cells[index] if array.cells else 0

    def _write_unmodelled(self, array: Shared, index: int, value: int) -> None:
        array.check(index)
        if not array.cells:
            raise Violation("own-words", f"{self.current.name} wrote {array.name}[{index}] = {value}")
        array.cells[index] = value

    # atomics: the methods that `ring.atomics.interposer` has

    def _reach(self) -> tuple[bool, Any]:
        """Bring the lane to a switch point: whether a result was fed, and which."""
        actor = self.current
        if actor.lanes > 1 or actor.fed[self.lane] == len(actor.logs[self.lane]):
            self._park()
        return self._fed()

    def _load(self, array: Any, index: int, acquire: bool) -> int:
        if array.__class__ is LaneWords:
            return self._exchange(array, index, None, plain=True)
        if array.__class__ is FlatRing:
            array, index = array.at(index)
            if array is self.tokens:
                return self._load_pair(index)
        at, kind = array.where[index], array.kind[index]
        if at < 0:
            return self._unmodelled(array, index)
        if kind == SYNC and self.writers[at] != self.current.index:
            behind, result = self._reach()
        else:
            behind, result = self._fed()
        if behind:
            return result
        if kind == SYNC:
            if acquire:
                self.knowledge.acquire(self.agent, at)
            else:
                self.knowledge.relaxed_load(self.agent, at)
            if self.telling:
                self.tell(self.current, f"reads {self.show(array.name, index, self.memory[at])}")
        elif kind == DATA:
            self.knowledge.read(self.agent, array.group[index])
        return self._log(self.memory[at])

    def _load_pair(self, index: int) -> int:
        behind, result = self._fed()
        if behind:
            return result
        low, high = (self.tokens.where[index + k] for k in range(2))
        pair = [0 if at < 0 else self.memory[at] & 0xFFFFFFFF for at in (low, high)]
        return self._log(pair[0] | pair[1] << 32)

    def _store(self, array: Any, index: int, value: int, release: bool) -> None:
        if array.__class__ is Words:
            array[index] = value
            return
        if array.__class__ is LaneWords:
            self._exchange(array, index, lambda _: value, plain=True)
            return
        if array.__class__ is FlatRing:
            array, index = array.at(index)
            value = int(value)  # staging memory may be a NumPy array
            if array is self.tokens:
                self._store_pair(index, value)
                return
        at, kind = array.where[index], array.kind[index]
        if at < 0:
            self._write_unmodelled(array, index, value)
            return
        if (self._reach() if kind == SYNC else self._fed())[0]:
            return
        if kind == SYNC:
            if release:
                self.knowledge.release(self.agent, at)
            else:
                self.knowledge.relaxed_store(self.agent, at)
        else:
            self.knowledge.write(self.agent, array.group[index])
        before, self.memory[at] = self.memory[at], value
        if self.telling:
            self.tell(self.current, f"writes {self.show(array.name, index, value)}")
        self._log(None)
        self._watch(at, before, value)

    def _store_pair(self, index: int, value: int) -> None:
        if self._fed()[0]:
            return
        for k in range(2):
            at = self.tokens.where[index + k]
            if at >= 0:
                self.knowledge.write(self.agent, self.tokens.group[index + k])
                self.memory[at] = (value >> (32 * k)) & 0xFFFFFFFF
        self._log(None)

    def _watch(self, at: int, before: int, value: int) -> None:
        watcher = self.watchers.get(at)
        if watcher is not None:
            watcher(self.current.index, before, value)

    def load_relaxed(self, array: Any, index: int) -> int:
        if array.__class__ is Words:
            return array[index]
        return self._load(array, index, False)

    def load_acquire(self, array: Any, index: int) -> int:
        if array.__class__ is Words:
            return array[index]
        return self._load(array, index, True)

    def store_relaxed(self, array: Any, index: int, value: int) -> None:
        self._store(array, index, value, False)

    def store_release(self, array: Any, index: int, value: int) -> None:
        self._store(array, index, value, True)

    def compare_and_swap(self, array: Any, index: int, expected: int, desired: int) -> int:
        return self._exchange(array, index, lambda before: desired if before == expected else before)

    def fetch_add(self, array: Any, index: int, value: int) -> int:
        return self._exchange(array, index, lambda before: before + value)

    def _exchange(self, array: Any, index: int, change: Any, plain: bool = False) -> int:
        if array.__class__ is Words:
            before = array[index]
            array[index] = change(before)
            return before
        if array.__class__ is LaneWords:
            if not plain:  # loads and stores of state words move with the shared access before them
                self._park()
            self.lane_access(array, index, "atomic")
            before = array.raw(index)
            if change is not None:
                array.put(index, change(before))
            return before
        behind, result = self._reach()
        if behind:
            return result
        at = array.where[index]
        before = self.memory[at]
        after = change(before)
        self.knowledge.exchange(self.agent, at)
        self.memory[at] = after
        if self.telling:
            shown = self.show(array.name, index, after)
            self.tell(self.current, f"exchanges {shown}" if after != before else f"fails to exchange {shown}")
        self._log(before)
        if after != before:
            self._watch(at, before, after)
        return before

    def lane_access(self, array: LaneWords, index: int, how: str) -> None:
        """Account for an access of a lane to words that lanes share; a race is a violation.

        Lanes order their accesses by barriers: between two of them, no two lanes may touch a
        word, one at least to write, unless both do it atomically.
        """
        if self.current is None or self.current.lanes == 1 or self.current.entering:
            return
        key = (id(array), index)
        before = self.between_barriers.get(key)
        mine = (self.lane, how)
        if before is None or before == mine:
            self.between_barriers[key] = mine
            return
        lane, earlier = before
        if lane != self.lane and not (earlier == how and how in ("read", "atomic")):
            raise Violation(
                "no-data-race",
                f"lane {self.lane} {how} of {array.name}[{index}] beside a {earlier} of another lane",
            )
        if lane != self.lane:
            self.between_barriers[key] = (-1, how)
        elif how == "write":
            self.between_barriers[key] = mine

    def fence(self) -> None:
        actor = self.current
        if actor.fed[self.lane] == len(actor.logs[self.lane]):
            self.knowledge.fence(self.agent)

    def lane_barrier(self) -> None:
        if self.current.lanes > 1:
            self._park(BARRIER)

    def now_ns(self) -> int:
        """The scheduler's loop head: it takes the time once a turn."""
        self.head()
        return self.clock()

    def clock(self) -> int:
        """Time in the model."""
        return 0

    def pause(self, spins: int) -> None:
        """Nothing: a turn that changed nothing leads to the state it began in."""

    # --- telling ---------------------------------------------------------------------------------

    tokens: Shared = None  # type: ignore[assignment]

    def tell(self, actor: Actor, text: str) -> None:
        if self.telling:
            name = actor.name if actor.lanes == 1 else f"{actor.name} lane {self.lane}"
            self.steps.append(Step(name, text))

    def show(self, name: str, index: int, value: int) -> str:
        """A word and its meaning."""
        return f"{name}[{index}] = {value}"

