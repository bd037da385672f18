"""The buffers of a model: ring, step buffer, launcher and scheduler state, as checked arrays."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from blink_numba.verify.accesses import CheckedWorld
from blink_numba.verify.answers import EOS, VOCAB
from blink_numba.verify.memory import DATA, OWN, RAW, SILENT, SYNC, FlatRing, LaneWords, Shared, Words
from blink_numba.verify.own_policy import own_policy
from blink_numba.verify.setup import PARK, RUN, Setup
from ring.python_copy import PythonCopy

EXTENT = 8  # tokens of a slot's prompt extent, and of its answer's
PAIRS = 2  # of a token's log-probabilities
RECORDS = EXTENT * 2 * PAIRS  # int32 of an answer's


class Buffers(CheckedWorld):
    """Memory of a setup, and what each of its words is there to carry.

    Parameters
    ----------
    setup : Setup
    copy : PythonCopy
    agents : int
        Actors, each lane counted for itself.
    """

    def __init__(self, setup: Setup, copy: PythonCopy, agents: int) -> None:
        super().__init__()
        self.setup, self.copy = setup, copy
        self.at: Any = copy.module("ring.layout")
        self.sc: Any = copy.module("scheduler.state")
        self._step_io: Any = copy.module("graphs.step_io")
        clients = setup.clients
        self.asks = [ask for client in clients for ask in (*client.asks, *client.afterwards)]
        self.logprobs = any(ask.logprobs for ask in self.asks)
        self._span = 2 * EXTENT + (RECORDS if self.logprobs else 0)  # of a slot's extents
        self.geometry = self.at.RingGeometry(
            slots=32 * len(clients), front_ends=len(clients), arena_tokens=self._share() * len(clients),
            log_entries=setup.log_entries, flight_entries=2,
        )  # fmt: skip
        self.spec = self._spec()
        self.blocks_per_seat = self.spec.blocks_per_seat
        self.slots_used = [32 * k + s for k, client in enumerate(clients) for s in range(client.slots)]
        self.open(agents, setup.lanes)
        self._make_ring()
        self._make_step_buffer()
        self._make_launcher()
        self._make_state()
        self.clock_word = Shared(self, "clock", 1)
        if any(ask.deadline for ask in self.asks):
            self.word(self.clock_word, 0, SYNC)
        self._settle_knowledge()

    def extent_of(self, slot: int) -> int:
        """First arena token of a slot's extents."""
        return (slot // 32) * self._share() + (slot % 32) * self._span

    @property
    def _one_lane(self) -> int:
        """The scheduler's index, as the writer of a word, if it has one lane."""
        return 0 if self.setup.lanes == 1 else -1

    # --- sizes -----------------------------------------------------------------------------------

    def _share(self) -> int:
        return max(client.slots for client in self.setup.clients) * self._span

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
            self.word(ring.command, at.C_PARK if setup.stop == PARK else at.C_STOP, SYNC)
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
        for token in range((self._span - 2 * EXTENT) // (2 * PAIRS)):
            record = self.payload(f"log-probabilities of token {token} of slot {slot}")
            for word in range(2 * PAIRS):
                self.word(ring.tokens, start + 2 * EXTENT + 2 * PAIRS * token + word, RAW, 0, record)

    def _make_step_buffer(self) -> None:
        step_io = self._step_io
        inputs = self.payload("step inputs")
        arrays = []
        for section in step_io.sections_of(self.spec):
            array = Shared(self, section.name, section.words, -1)
            arrays.append(array)
            if section.name == "out_logprobs":
                self._make_records(array)
            if section.name == "out_logprobs" or (section.name == "late_token" and not self.setup.pipelined):
                continue
            for index in range(section.words):
                payload = inputs
                if section.name == "out_token":
                    payload = self.payload(f"output of seat {index}")
                elif (self.setup.lanes > 1 or self.setup.pipelined) and section.name != "control":
                    payload = self.payload(f"{section.name}[{index}]")  # several write them side by side
                unused = -1 if section.name in ("decode_rows", "prefill_seat", "run_seat") else 0
                if section.name != "control":
                    self.word(array, index, DATA, unused, payload)
        self.io = step_io.StepIO(*arrays)
        self.word(self.io.control, step_io.TICKET, DATA, 0, inputs)
        self.word(self.io.control, step_io.DONE, SYNC)
        self.word(self.io.control, step_io.FAULT, DATA, 0, self.payload("fault word"))
        for half in range(2 * self.setup.pipelined):
            fault = self.payload(f"late fault word {half}")
            self.word(self.io.control, step_io.LATE_FAULT + half, DATA, 0, fault)

    def _make_records(self, array: Shared) -> None:
        if self.logprobs:
            for record in range(2 * self.setup.seats):
                payload = self.payload(f"log-probabilities {record} of a step")
                for word in range(PAIRS):
                    self.word(array, record * PAIRS + word, DATA, 0, payload)

    def _make_launcher(self) -> None:
        launcher, grid = self.copy.module("graphs.launcher"), self.copy.module("graphs.grid")
        launcher.WINDOW = self.copy.module("scheduler.choose").WINDOW = self.setup.window
        words = grid.make_table(self.spec)
        self.table = grid.GraphTable(*(Words(section.tolist()) for section in grid.table_view(words)))
        executables = grid.EXECS * len(grid.shapes(self.spec))
        core = Shared(self, "launcher", launcher.CORE_WORDS, OWN)
        running = Shared(self, "running", executables * 8, -1)
        mailbox = Shared(self, "mailbox", launcher.QUEUE, -1)
        kind = launcher.PipelinedLauncher if self.setup.pipelined else launcher.Launcher
        self.launcher = kind(core, running, mailbox)
        self.window_word = launcher.L_WINDOW
        self.word(core, launcher.L_SENT, SYNC, writer=self._one_lane)
        for executable in range(executables):
            self.word(running, executable * 8, SYNC)
        # as many as may be on their way at once
        letters = [self.payload(f"mailbox, part {part}") for part in range(1 + self.setup.pipelined)]
        for entry in range(launcher.QUEUE):
            self.word(mailbox, entry, DATA, 0, letters[entry % len(letters)])

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
        whole = SimpleNamespace()
        arrays = {}
        for name, values in fields.items():
            if name in ("hot", "words"):
                arrays[name] = whole
            elif self.setup.lanes > 1 and name != "config":
                arrays[name] = LaneWords(self, name, values.tolist())
            else:
                arrays[name] = Words(values.tolist())
        self.state = sc.SchedulerState(**arrays)
        whole.state = self.state

    def _policy(self, name: str) -> Any:
        shipped = self.copy.module("scheduler.policies").SHIPPED
        if name in shipped:
            policy = self.copy.module(f"scheduler.policies.{shipped[name]}").POLICY
        else:
            policy = own_policy(self.copy, name)
        return replace(policy, margin=0)  # as eager to preempt as can be

    def _settle_knowledge(self) -> None:
        """Say what each word of the protocol is there to carry."""
        ring, at, know = self.ring, self.at, self.knowledge
        lanes, others = range(self.setup.lanes), range(self.setup.lanes, know.agents)
        if self.setup.restart:  # scheduler and engine of another process come last
            lanes = others = range(know.agents)

        def payloads(array: Any, start: int, count: int) -> list[int]:
            return sorted({array.group[k] for k in range(start, start + count)} - {-1})

        answers = {}
        for slot in self.slots_used:
            start = self.extent_of(slot)
            request = payloads(ring.descriptor, slot * at.DESCRIPTOR_WORDS, at.DESCRIPTOR_WORDS)
            request += payloads(ring.tokens, start, EXTENT)
            answers[slot] = payloads(ring.tokens, start + EXTENT, self._span - EXTENT)
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
            *payloads(self.io.out_logprobs, 0, self.io.out_logprobs.shape[0]),
            self.io.control.group[self._step_io.FAULT],
        ]
        if self.setup.pipelined:
            outputs += payloads(self.io.late_token, 0, self.io.late_token.shape[0])
            outputs += payloads(self.io.control, self._step_io.LATE_FAULT, 2)
        inputs = [self.io.control.group[self._step_io.TICKET], *payloads(self.launcher.mailbox, 0, 2)]
        for array in self.io[1 : self._step_io.OUT_TOKEN]:
            inputs += payloads(array, 0, array.shape[0])
        inputs = sorted(set(inputs))
        know.carried[self.launcher.core.where[launcher.L_SENT]] = know.written(inputs) | know.read_by(
            lanes, outputs
        )
        done = know.written(outputs) | know.read_by(others, inputs)
        if self.setup.pipelined:
            done |= know.written(inputs)  # a step hands its successor what it needs
        know.carried[self.io.control.where[self._step_io.DONE]] = done
        know.fenced = know.written(inputs) | know.read_by(lanes, outputs)
