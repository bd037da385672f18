"""From a setup to a world: the ring, the scheduler's state and the actors around them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from blink_numba.verify.actors import Engine, FrontEnd, Host, Scheduler, Successor, Time
from blink_numba.verify.answers import EOS, VOCAB, answer_of
from blink_numba.verify.invariants import G_WINDOW, GHOSTS, SLOT_GHOSTS, Monitor
from blink_numba.verify.memory import DATA, OWN, RAW, SILENT, SYNC, FlatRing, LaneWords, Shared, Words
from blink_numba.verify.setup import RUN, Ask, Setup
from blink_numba.verify.world import DEAD, DONE, OFF, Actor, State, World
from ring.python_copy import PythonCopy

# functions that make views of buffers: the model gives its views themselves
VIEWS = ("ring_view", "state_view", "borrowed_view", "step_view", "table_view", "launcher_view")
EXTENT = 8  # tokens of a slot's prompt extent, and of its answer's
_copies = itertools.count()


# shorter descriptors: fewer words to carry through every state
SMALLER = [("MAX_STOP_IDS = 16", "MAX_STOP_IDS = 2"), ("DESCRIPTOR_WORDS = 32", "DESCRIPTOR_WORDS = 16")]


def fresh_copy(edits: Mapping[str, list[tuple[str, str]]] | None = None) -> PythonCopy:
    """A pure-Python copy of the protocol, edited or not."""
    edits = dict(edits or {})
    edits["ring.layout"] = [*SMALLER, *edits.get("ring.layout", ())]
    return PythonCopy(f"blink_numba_python_{next(_copies)}", edits)


class Plan(NamedTuple):
    """What a slot's incarnation must do."""

    ask: Ask
    answer: list[int]
    output_start: int


class Model(World):
    """The world of a setup.

    Parameters
    ----------
    setup : Setup
    copy : PythonCopy, optional
        The sources to check, of this model alone; the unedited ones by default.
    """

    def __init__(self, setup: Setup, copy: PythonCopy | None = None) -> None:
        super().__init__()
        self.setup = setup
        self.copy = copy if copy is not None else fresh_copy()
        self.at: Any = self.copy.module("ring.layout")
        self.sc: Any = self.copy.module("scheduler.state")
        self._step_io: Any = self.copy.module("graphs.step_io")
        clients = setup.clients
        self.asks = [ask for client in clients for ask in (*client.asks, *client.afterwards)]
        self.geometry = self.at.RingGeometry(
            slots=32 * len(clients), front_ends=len(clients), arena_tokens=self._share() * len(clients),
            log_entries=setup.log_entries, flight_entries=2,
        )  # fmt: skip
        self.spec = self._spec()
        self.blocks_per_seat = self.spec.blocks_per_seat
        self.slots_used = [32 * k + s for k, client in enumerate(clients) for s in range(client.slots)]
        self.slot_order = {slot: order for order, slot in enumerate(self.slots_used)}
        self._plans: dict[tuple[int, int, int], Plan] = {}
        crashing = sum(client.crash for client in clients)
        stopping = setup.stop != RUN
        timing = any(ask.deadline for ask in self.asks)
        self.open(setup.lanes + 1 + len(clients) + crashing + stopping + timing, setup.lanes)
        self.copy.module("ring.atomics").interposer = self
        self._make_ring()
        self._make_step_buffer()
        self._make_launcher()
        self._make_state()
        self.clock_word = Shared(self, "clock", 1)
        if timing:
            self.word(self.clock_word, 0, SYNC)
        self._settle_knowledge()
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
        self.monitor = Monitor(self)
        self.ghost[:] = [0] * (GHOSTS + SLOT_GHOSTS * len(self.slots_used))
        self._watch_words()
        self._begin_incarnations()

    @property
    def _one_lane(self) -> int:
        """The scheduler's index, as the writer of a word, if it has one lane."""
        return 0 if self.setup.lanes == 1 else -1

    # --- sizes -----------------------------------------------------------------------------------

    def _share(self) -> int:
        return max(client.slots for client in self.setup.clients) * 2 * EXTENT

    def _spec(self) -> Any:
        setup = self.setup
        longest = max(ask.prompt + ask.tokens for ask in self.asks)
        per_seat = -(-longest // setup.block_size)
        batches = tuple(sorted({1, setup.seats}))
        return self._step_io.EngineSpec(
            seats=setup.seats, decode_batches=batches, prefill_tokens=(setup.prefill_tokens,),
            prefill_sequences=setup.prefill_sequences, block_size=setup.block_size, blocks=setup.blocks,
            blocks_per_seat=per_seat, max_model_len=per_seat * setup.block_size, vocab_size=VOCAB,
            eos_ids=(EOS,),
        )  # fmt: skip

    # --- shared memory -----------------------------------------------------------------------------

    def _make_ring(self) -> None:
        at, setup, geometry = self.at, self.setup, self.geometry
        views = self.copy.module("ring.views")
        arrays = {
            section.name: Shared(self, section.name, section.words, SILENT if section.name in silent else -1)
            for section in geometry.sections()
            for silent in [("status", "flight", "fe_port")]
        }
        arrays["arena"] = Shared(self, "tokens", geometry.arena_tokens, -1)
        ring = self.ring = views.RingView(
            *(arrays["tokens" if name == "tokens" else name] for name in views.RingView._fields[:-1]),
            arrays["arena"],
        )
        self.tokens = ring.tokens
        for k, client in enumerate(setup.clients):
            self.word(ring.doorbell, k, SYNC)
            self.word(ring.fe_sched, k * at.FE_WORDS + at.D_LOG_HEAD, SYNC, writer=self._one_lane)
            if client.crash:
                self.word(ring.fe_sched, k * at.FE_WORDS + at.D_DRAINED, SYNC, writer=self._one_lane)
                self.word(ring.fe_fence, k * at.FE_WORDS + at.F_FENCE, SYNC)
        if setup.stop != RUN:
            self.word(ring.command, at.C_STOP, SYNC)
            self.word(ring.status, at.S_PHASE, SYNC)
        for slot in self.slots_used:
            self._make_slot(slot)
        for entry in range(geometry.log_entries * len(setup.clients)):
            kind = SYNC if setup.short_log else DATA
            payload = -1 if setup.short_log else self.payload(f"log entry {entry}")
            self.word(ring.log, entry, kind, 0, payload)
        starts, size = self.copy.module("ring.sections").layout(geometry.sections())
        pieces = [(starts[k], arrays[name]) for k, name in enumerate(at.SECTION_NAMES) if name != "arena"]
        self.starts = starts
        self.flat = FlatRing(size, pieces, (starts[at.ARENA], ring.tokens))

    def _make_slot(self, slot: int) -> None:
        at, ring = self.at, self.ring
        self.word(ring.ctl, 2 * slot, SYNC, writer=self._one_lane)
        ring.ctl.cells = ring.ctl.cells or [0] * ring.ctl.shape[0]  # the advisory words
        self.word(ring.req, slot, SYNC)
        descriptor = self.payload(f"descriptor of slot {slot}")
        for word in range(at.DESCRIPTOR_WORDS):
            self.word(ring.descriptor, slot * at.DESCRIPTOR_WORDS + word, DATA, 0, descriptor)
        start = self.extent_of(slot)
        prompt = self.payload(f"prompt of slot {slot}")
        for token in range(EXTENT):
            self.word(ring.tokens, start + token, RAW, 0, prompt)
            answer = self.payload(f"token {token} of slot {slot}")
            self.word(ring.tokens, start + EXTENT + token, RAW, 0, answer)

    def _make_step_buffer(self) -> None:
        step_io = self._step_io
        inputs = self.payload("step inputs")
        arrays = []
        for section in step_io.sections_of(self.spec):
            array = Shared(self, section.name, section.words, -1)
            arrays.append(array)
            for index in range(section.words):
                payload = inputs
                if section.name == "out_token":
                    payload = self.payload(f"output of seat {index}")
                elif self.setup.lanes > 1 and section.name != "control":
                    payload = self.payload(f"{section.name}[{index}]")  # lanes write them side by side
                unused = -1 if section.name in ("decode_rows", "prefill_seat", "run_seat") else 0
                if section.name != "control":
                    self.word(array, index, DATA, unused, payload)
        self.io = step_io.StepIO(*arrays)
        self.word(self.io.control, step_io.TICKET, DATA, 0, inputs)
        self.word(self.io.control, step_io.DONE, SYNC)
        self.word(self.io.control, step_io.FAULT, DATA, 0, self.payload("fault word"))

    def _make_launcher(self) -> None:
        launcher, grid = self.copy.module("graphs.launcher"), self.copy.module("graphs.grid")
        launcher.WINDOW = self.copy.module("scheduler.choose").WINDOW = self.setup.window
        words = grid.make_table(self.spec)
        self.table = grid.GraphTable(*(Words(section.tolist()) for section in grid.table_view(words)))
        executables = grid.EXECS * len(grid.shapes(self.spec))
        core = Shared(self, "launcher", launcher.CORE_WORDS, OWN)
        running = Shared(self, "running", executables * 8, -1)
        mailbox = Shared(self, "mailbox", launcher.QUEUE, -1)
        self.launcher = launcher.Launcher(core, running, mailbox)
        self.window_word = launcher.L_WINDOW
        self.word(core, launcher.L_SENT, SYNC, writer=self._one_lane)
        for executable in range(executables):
            self.word(running, executable * 8, SYNC)
        letters = self.payload("mailbox")
        for entry in range(launcher.QUEUE):
            self.word(mailbox, entry, DATA, 0, letters)

    def _make_state(self) -> None:
        sc = self.sc
        words = sc.make_state(
            self.spec, self.geometry, placement=int(self.setup.records_scanned), step_deadline_s=1e6
        )
        policy = self.copy.module("scheduler.policy")
        self.policy = policy.FCFS if self.setup.policy == "fcfs" else self._policy(self.setup.policy)
        policy.install(sc.state_view(words), self.policy)
        viewed = sc.state_view(words)
        fields = dict(zip(sc.SchedulerState._fields, viewed, strict=True))
        whole = type("Whole", (), {})()
        arrays = {}
        for name, values in fields.items():
            if name == "words":
                arrays[name] = whole
            elif self.setup.lanes > 1 and name != "config":
                arrays[name] = LaneWords(self, name, values.tolist())
            else:
                arrays[name] = Words(values.tolist())
        self.state = sc.SchedulerState(**arrays)
        whole.state = self.state

    def _policy(self, name: str) -> Any:
        shipped = self.copy.module("scheduler.policies").SHIPPED
        policy = self.copy.module(f"scheduler.policies.{shipped[name]}").POLICY
        return replace(policy, margin=0)  # as eager to preempt as can be

    def _settle_knowledge(self) -> None:
        """Say what each word of the protocol is there to carry."""
        ring, at, know = self.ring, self.at, self.knowledge
        lanes = range(self.setup.lanes)
        others = range(self.setup.lanes, know.agents)

        def payloads(array: Any, start: int, count: int) -> list[int]:
            return sorted({array.group[k] for k in range(start, start + count)} - {-1})

        answers = {}
        for slot in self.slots_used:
            start = self.extent_of(slot)
            request = payloads(ring.descriptor, slot * at.DESCRIPTOR_WORDS, at.DESCRIPTOR_WORDS)
            request += payloads(ring.tokens, start, EXTENT)
            answers[slot] = payloads(ring.tokens, start + EXTENT, EXTENT)
            know.carried[ring.ctl.where[2 * slot]] = know.written(answers[slot]) | know.read_by(
                lanes, request
            )
            know.carried[ring.req.where[slot]] = know.written(request) | know.read_by(others, answers[slot])
        entries = self.setup.log_entries
        for k in range(len(self.setup.clients)):
            logged = payloads(ring.log, k * entries, entries)
            own = [payload for slot in self.slots_used if slot // 32 == k for payload in answers[slot]]
            know.carried[ring.fe_sched.where[k * at.FE_WORDS + at.D_LOG_HEAD]] = know.written([*logged, *own])
        launcher = self.copy.module("graphs.launcher")
        outputs = [
            *payloads(self.io.out_token, 0, self.setup.seats),
            self.io.control.group[self._step_io.FAULT],
        ]
        inputs = [self.io.control.group[self._step_io.TICKET], self.launcher.mailbox.group[0]]
        for array in self.io[1:-1]:
            inputs += payloads(array, 0, array.shape[0])
        inputs = sorted(set(inputs))
        know.carried[self.launcher.core.where[launcher.L_SENT]] = know.written(inputs) | know.read_by(
            lanes, outputs
        )
        done = know.written(outputs) | know.read_by(others, inputs)
        know.carried[self.io.control.where[self._step_io.DONE]] = done
        know.fenced = know.written(inputs) | know.read_by(lanes, outputs)

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

        choose.launch = watched_launch
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

    def extent_of(self, slot: int) -> int:
        """First arena token of a slot's extents."""
        return (slot // 32) * self._share() + (slot % 32) * 2 * EXTENT

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
        successor = self.successors[actor.client]  # type: ignore[attr-defined]
        self.knowledge.witness(successor.first_agent, actor.first_agent)
        self.awake(successor)

    # --- the end ---------------------------------------------------------------------------------------

    def is_goal(self, state: State) -> bool:
        """Whether all requests have ended and the scheduler has nothing left."""
        for actor, place in zip(self.actors, state.places, strict=True):
            if actor.index > 1 and place.status not in (DONE, DEAD, OFF):
                return False
        place, sc = state.places[0], self.sc
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
        self.monitor.check_end(self.scheduler.core_of(state.places[0]))

    def show(self, name: str, index: int, value: int) -> str:
        from blink_numba.verify.story import show_word

        return show_word(self, name, index, value)


__all__ = ["G_WINDOW", "Model", "Plan", "fresh_copy"]
