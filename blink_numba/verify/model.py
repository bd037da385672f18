"""From a setup to a world: the ring, the scheduler's state and the actors around them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from blink_numba.verify.actors import Engine, EngineAgain, Host, Scheduler, SchedulerAgain, Time
from blink_numba.verify.answers import answer_of
from blink_numba.verify.buffers import EXTENT, Buffers
from blink_numba.verify.front_ends import FrontEnd, Successor
from blink_numba.verify.invariants import G_IN_FLIGHT, G_WINDOW, GHOSTS, SLOT_GHOSTS, Monitor
from blink_numba.verify.places import DEAD, DONE, OFF, Actor, Place, State
from blink_numba.verify.setup import RUN, Ask, Setup
from ring.python_copy import PythonCopy

# functions that make views of buffers: the model gives its views themselves
VIEWS = ("ring_view", "state_view", "borrowed_view", "step_view", "table_view", "launcher_view")
_copies = itertools.count()


# shorter descriptors and records: fewer words to carry through every state
SMALLER = {
    "ring.layout": [
        ("MAX_STOP_IDS = 16", "MAX_STOP_IDS = 2"), ("MAX_LOGPROBS = 20", "MAX_LOGPROBS = 1"),
        ("DESCRIPTOR_WORDS = 32", "DESCRIPTOR_WORDS = 18"),
    ],
    "graphs.step_io": [("RECORD_WORDS = 24", "RECORD_WORDS = 2")],
}  # fmt: skip


def fresh_copy(edits: Mapping[str, list[tuple[str, str]]] | None = None) -> PythonCopy:
    """A pure-Python copy of the protocol, edited or not."""
    edits = dict(edits or {})
    for module, smaller in SMALLER.items():
        edits[module] = [*smaller, *edits.get(module, ())]
    return PythonCopy(f"blink_numba_python_{next(_copies)}", edits)


class Plan(NamedTuple):
    """What a slot's incarnation must do."""

    ask: Ask
    answer: list[int]
    output_start: int


class Model(Buffers):
    """The world of a setup.

    Parameters
    ----------
    setup : Setup
    copy : PythonCopy, optional
        The sources to check, of this model alone; the unedited ones by default.
    """

    def __init__(self, setup: Setup, copy: PythonCopy | None = None) -> None:
        clients = setup.clients
        crashing = sum(client.crash for client in clients)
        stopping = setup.stop != RUN
        timing = any(ask.deadline for client in clients for ask in client.asks)
        agents = setup.lanes + 1 + len(clients) + crashing + stopping + timing + 2 * setup.restart
        super().__init__(setup, copy if copy is not None else fresh_copy(), agents)
        self.copy.module("ring.atomics").interposer = self
        self.slot_order = {slot: order for order, slot in enumerate(self.slots_used)}
        self._plans: dict[tuple[int, int, int], Plan] = {}
        self._patch()
        self.scheduler = Scheduler(self)
        self.add(self.scheduler)
        self.add(Engine(self))
        self.front_ends = [FrontEnd(self, k) for k in range(len(clients))]
        for front_end in self.front_ends:
            self.add(front_end)
        self.successors = {k: Successor(self, k) for k, client in enumerate(clients) if client.crash}
        for successor in self.successors.values():
            self.add(successor)
        if stopping:
            self.add(Host(self))
        if timing:
            self.add(Time(self))
        self.again: list[Actor] = [SchedulerAgain(self), EngineAgain(self)] if setup.restart else []
        for actor in self.again:
            self.add(actor)
        self.scheduler.may_crash = setup.restart
        self.monitor = Monitor(self)
        self.ghost[:] = [0] * (GHOSTS + SLOT_GHOSTS * len(self.slots_used))
        self._watch_words()
        self._begin_incarnations()

    # --- the copy ----------------------------------------------------------------------------------

    def _patch(self) -> None:
        """Give the copy the model's views, and take out what only observers see."""
        copy = self.copy

        def viewed(words: Any, *_: Any) -> Any:
            return getattr(words, "state", words)

        loop = copy.module("scheduler.loops.cpu")
        for module in copy.loaded():
            for name in list(vars(module)):
                if name in VIEWS:
                    setattr(module, name, viewed)
                elif name in ("record", "publish_status"):
                    setattr(module, name, lambda *_: None)
        choose = copy.module("scheduler.choose")
        launch = copy.module("graphs.launcher").launch

        def watched_launch(launcher: Any, table: Any, executable: int) -> int:
            if self.is_live():
                self.monitor.before_launch(launcher, executable)
            return launch(launcher, table, executable)

        choose.launch = copy.module("scheduler.ahead").launch = watched_launch
        open_window = copy.module("graphs.launcher").open_window

        def watched_open(launcher: Any) -> None:
            if self.is_live():
                self.monitor.on_window()
            open_window(launcher)

        loop.open_window = watched_open

        def store_unless_beginning(array: Any, index: int, value: int) -> None:
            # what the loop says of its beginning would be said again whenever a place is entered
            if array is not self.ring.status or value != self.at.PHASE_RUNNING:
                self.store_release(array, index, value)

        loop.store_release = store_unless_beginning
        if self.setup.overlap:
            scan = copy.module("scheduler.claim").scan
            copy.module("scheduler.turn").scan = lambda ring, state, lane, lanes: scan(ring, state, 0, 1)

    def is_live(self) -> bool:
        """Whether the current lane is at the end of its log, not being fed."""
        return self.current.fed[self.lane] == len(self.current.logs[self.lane])

    def _watch_words(self) -> None:
        monitor, ring, at = self.monitor, self.ring, self.at

        def bind(check: Any, number: int) -> Any:
            return lambda actor, before, after: check(number, actor, before, after)

        for slot in self.slots_used:
            self.watchers[ring.ctl.where[2 * slot]] = bind(monitor.on_ctl, slot)
            self.watchers[ring.req.where[slot]] = bind(monitor.on_req, slot)
        for k in range(len(self.setup.clients)):
            line = k * at.FE_WORDS
            self.watchers[ring.fe_sched.where[line + at.D_LOG_HEAD]] = bind(monitor.on_head, k)
            if k in self.successors:
                self.watchers[ring.fe_sched.where[line + at.D_DRAINED]] = bind(monitor.on_drained, k)
        self.watchers[self.io.control.where[self._step_io.DONE]] = monitor.on_done
        sent = self.copy.module("graphs.launcher").L_SENT
        self.watchers[self.launcher.core.where[sent]] = monitor.on_sent
        for executable in range(self.launcher.running.shape[0] // 8):
            at_word = self.launcher.running.where[executable * 8]
            self.watchers[at_word] = bind(monitor.on_running, executable)

    def _begin_incarnations(self) -> None:
        first = self.setup.first_incarnation
        if not first:
            return
        words, states, sc = (self.copy.module(m) for m in ("ring.words", "ring.states", "scheduler.state"))
        for slot in self.slots_used:
            ctl = words.pack_ctl(first, 0, states.R_LENGTH, states.DECODE_COMPLETED)
            self.memory[self.ring.ctl.where[2 * slot]] = ctl
            self.memory[self.ring.req.where[slot]] = words.pack_req(first, words.RELEASE)
            bit = (first & 1) << (slot % 32)
            self.memory[self.ring.doorbell.where[slot // 32]] |= bit
            list.__setitem__(
                self.state.parity, slot // 32, list.__getitem__(self.state.parity, slot // 32) | bit
            )
            list.__setitem__(self.state.slots, slot * sc.SLOT_WORDS + sc.SL_INCARNATION, first)

    # --- what monitor and actors ask -----------------------------------------------------------------

    def client_of(self, slot: int) -> int:
        """Front end that owns a slot."""
        return slot // 32

    def clients_of(self, slot: int) -> list[Actor]:
        """Actors that may write a slot's request."""
        client = self.client_of(slot)
        return [self.front_ends[client], *([self.successors[client]] if client in self.successors else [])]

    def is_successor(self, actor: int) -> bool:
        """Whether an actor took another's place."""
        return self.actors[actor] in self.successors.values()

    def peek(self, array: Any, index: int) -> int:
        """A word, without any effect."""
        return self.memory[array.where[index]]

    def plan_of(self, slot: int, incarnation: int) -> Plan | None:
        """What the request in a slot must do; None without one."""
        at = self.at
        number = self.peek(self.ring.descriptor, slot * at.DESCRIPTOR_WORDS + at.Q_TENANT)
        if not number:
            return None
        key = (slot, incarnation, number)
        plan = self._plans.get(key)
        if plan is None:
            ask = self.asks[number - 1]
            answer = answer_of(slot, incarnation, ask.prompt, ask.tokens)
            plan = self._plans[key] = Plan(ask, answer, self.extent_of(slot) + EXTENT)
        return plan

    def slots_in_step(self) -> list[int]:
        """Slots whose requests are in the step being launched. In the scheduler's own move."""
        sc, seats, core = self.sc, self.state.seats, self.state.core
        get = list.__getitem__
        rows = get(core, sc.K_IN_FLIGHT_ROWS)
        named = self.io.run_seat if get(core, sc.K_PLAN) == sc.PREFILL_STEP else self.io.decode_rows
        return [get(seats, self.peek(named, row) * sc.SEAT_WORDS + sc.SE_SLOT) for row in range(rows)]

    def fence_of(self, client: int) -> int:
        """Generation of a front end's last declared death."""
        at = self.ring.fe_fence.where[client * self.at.FE_WORDS + self.at.F_FENCE]
        return self.memory[at] if at >= 0 else 0

    def is_dying(self, client: int) -> bool:
        """Whether a front end was declared dead and not drained since."""
        at = self.ring.fe_sched.where[client * self.at.FE_WORDS + self.at.D_DRAINED]
        return at >= 0 and self.fence_of(client) > self.memory[at]

    def stop_asked(self) -> int:
        """What the host asked for."""
        at = self.ring.command.where[self.at.C_STOP]
        return self.memory[at] if at >= 0 else RUN

    def time_is_up(self) -> bool:
        """Whether the deadlines have passed."""
        at = self.clock_word.where[0]
        return at >= 0 and self.memory[at] > 0

    def clock(self) -> int:
        return self._load(self.clock_word, 0, False) if self.clock_word.where[0] >= 0 else 0

    def on_crash(self, actor: Actor) -> None:
        if actor is self.scheduler:
            self._start_again()
            return
        successor = self.successors[actor.client]  # type: ignore[attr-defined]
        self.knowledge.witness(successor.first_agent, actor.first_agent)
        self.awake(successor)

    def _start_again(self) -> None:
        """Scheduler and engine are gone: fresh step buffer and launcher, and who uses them."""
        engine = self.actors[1]
        self._leave(engine)
        self._stand(engine, Place(DEAD, (), (), (), (), hash((DEAD, engine.index))))
        assert self._origin is not None
        for array in (*self.io, *self.launcher):
            for index, at in enumerate(array.where):
                if at >= 0:
                    self.memory[at] = self._origin.memory[at]
                    self.knowledge.tags[at] = 0
                    if array.group[index] >= 0:
                        self.knowledge.issued[array.group[index]] = 0
        self.ghost[G_IN_FLIGHT] = self.ghost[G_WINDOW] = 0
        for actor in self.again:
            self.knowledge.witness(actor.first_agent, self.scheduler.first_agent)
            self.awake(actor)

    def scheduler_place(self, state: State) -> Place:
        """Where the scheduler in charge is."""
        first = state.places[self.scheduler.index]
        return state.places[self.again[0].index] if first.status == DEAD else first

    # --- the end ---------------------------------------------------------------------------------------

    def is_goal(self, state: State) -> bool:
        """Whether all requests have ended and the scheduler has nothing left."""
        for actor, place in zip(self.actors, state.places, strict=True):
            if actor.index > 1 and actor not in self.again and place.status not in (DONE, DEAD, OFF):
                return False
        place, sc = self.scheduler_place(state), self.sc
        core = self.scheduler.core_of(place)
        if core[sc.K_SEATED] or core[sc.K_WAITING] or core[sc.K_IN_FLIGHT] or core[sc.K_CLAIMED]:
            return False
        return place.status == DONE or not self._unclaimed(state)

    def _unclaimed(self, state: State) -> bool:
        words = self.copy.module("ring.words")
        return any(
            words.req_incarnation(state.memory[self.ring.req.where[slot]])
            != words.ctl_incarnation(state.memory[self.ring.ctl.where[2 * slot]])
            for slot in self.slots_used
        )

    def check_goal(self, state: State) -> None:
        """What must hold when everything has ended."""
        self.monitor.check_end(self.scheduler.core_of(self.scheduler_place(state)))

    def show(self, name: str, index: int, value: int) -> str:
        from blink_numba.verify.story import show_word

        return show_word(self, name, index, value)


__all__ = ["G_WINDOW", "Model", "Plan", "fresh_copy"]
