"""Front ends of the model and their successors, around the real submitter, reader and attach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blink_numba.verify.actors import DEADLINE
from blink_numba.verify.answers import answer_of, prompt_of, record_of
from blink_numba.verify.buffers import EXTENT, PAIRS
from blink_numba.verify.memory import Narrow, Table, Violation, Window, Words
from blink_numba.verify.places import OFF, Actor
from blink_numba.verify.setup import RUN, Ask

if TYPE_CHECKING:
    from blink_numba.verify.model import Model


class FrontEnd(Actor):
    """A front end: the real plans and reader over the ring, with a small book of its own.

    An ask's record: slot (-1 before its submission), incarnation, cancelled, ended.
    """

    A_SLOT, A_INCARNATION, A_CANCELLED, A_ENDED = range(4)

    def __init__(self, model: Model, client: int, *, afterwards: bool = False) -> None:
        super().__init__(model)
        self.model, self.client = model, client
        self.name = f"front end {client}"
        self.plan = model.setup.clients[client]
        self.asks = self.plan.afterwards if afterwards else self.plan.asks
        before = sum(len(c.asks) + len(c.afterwards) for c in model.setup.clients[:client])
        self.first_ask = before + (len(self.plan.asks) if afterwards else 0)
        self.may_crash = self.plan.crash and not afterwards
        module = model.copy.module
        self.operations: Any = module("rdma.operations")
        self.reader: Any = module("rdma.reader")
        self.submit: Any = module("rdma.submit")
        self.shm: Any = module("rdma.shm")
        self.words: Any = module("ring.words")
        self._lay_out()

    def _lay_out(self) -> None:
        model, at, slots = self.model, self.model.at, self.plan.slots
        sizes = (
            8,
            64,
            8,
            model.setup.log_entries,
            32,
            8,
            at.DESCRIPTOR_WORDS * slots,
            8 * slots,
            self.reader.EXTENT_WORDS,
        )
        self.offsets = [sum(sizes[:k]) for k in range(len(sizes))]
        (self.s_sched, self.s_ctl, self.s_head, self.s_log, self.s_req, self.s_doorbell, self.s_descriptor,
         self.s_prompts, self.s_extents) = self.offsets  # fmt: skip
        self.staging = Words([0] * sum(sizes))
        self.narrow = Narrow(self.staging)
        starts, first = model.starts, 32 * self.client
        self.r_sched = starts[at.FE_SCHED] + self.client * at.FE_WORDS
        self.r_ctl = starts[at.CTL] + first * at.CTL_WORDS
        self.r_req = starts[at.REQ] + first
        self.r_doorbell = starts[at.DOORBELL] + self.client
        self.r_descriptor = starts[at.DESCRIPTOR] + first * at.DESCRIPTOR_WORDS
        r_log = starts[at.LOG] + self.client * model.setup.log_entries
        self.places = Words([self.r_sched, self.r_ctl, r_log, starts[at.ARENA], self.s_sched, self.s_ctl,
                             self.s_head, self.s_log, self.s_extents])  # fmt: skip
        self.table = Table(4 * slots + 8, 4)
        self.burst = Table(slots, 4)
        self.events = Table(slots, self.reader.EVENT_FIELDS)
        self.fresh_tokens = Words([0] * (model.setup.log_entries + 64))
        self.fresh_records = Words([0] * 64)
        self.slots = Table(slots, self.reader.SLOT_FIELDS, visible=32)
        self.active = Words([0] * slots)
        self.marks = Words([0] * self.reader.MARKS)
        self.marks[self.reader.M_FIRST_SLOT] = first
        self.marks[self.reader.M_LOG_ENTRIES] = model.setup.log_entries
        initial = model.setup.first_incarnation
        self.book = Words([initial] * slots)  # the last incarnation of each slot
        self.free = Words([1] * slots)
        self.records = Table(len(self.asks), 4)
        for row in self.records.rows:
            row[self.A_SLOT] = -1
        for slot in range(slots):
            self.staging[self.s_doorbell] |= (initial & 1) << slot

    # --- the loop ----------------------------------------------------------------------------------

    def body(self, lane: int) -> None:
        while not self._all_ended():
            self.model.head()
            over = self._scheduler_is_over()
            if not over:
                self._submit_next()
                self._maybe_cancel()
            if not self._poll() and over and not self._claimed_are_open():
                return

    def _all_ended(self) -> bool:
        return all(row[self.A_ENDED] for row in self.records.rows)

    def _scheduler_is_over(self) -> bool:
        model, at = self.model, self.model.at
        return (
            model.setup.stop != RUN and model.load_acquire(model.ring.status, at.S_PHASE) == at.PHASE_STOPPED
        )

    def _claimed_are_open(self) -> bool:
        """Whether some request that the scheduler took has not ended yet."""
        for row in self.records.rows:
            if row[self.A_SLOT] >= 0 and not row[self.A_ENDED]:
                word = self.staging[self.s_ctl + 2 * row[self.A_SLOT]]
                if self.words.ctl_incarnation(word) == row[self.A_INCARNATION]:
                    return True
        return False

    def _submit_next(self) -> None:
        count = 0
        for number, row in enumerate(self.records.rows):
            free = [slot for slot in range(self.plan.slots) if self.free[slot]]
            if row[self.A_SLOT] >= 0 or not free:
                continue
            self._stage(count, number, free[0])
            count += 1
            if not self.plan.burst:
                break
        if count:
            starts = (self.r_descriptor, self.r_req, self.r_doorbell)
            staged = (self.s_descriptor, self.s_req, self.s_doorbell)
            self._run(self.submit.plan_burst(self.table, 0, self.burst, count, starts, staged))

    def _stage(self, row: int, number: int, slot: int) -> None:
        model, at, ask = self.model, self.model.at, self.asks[number]
        incarnation = self.words.next_incarnation(self.book[slot])
        self.book[slot], self.free[slot] = incarnation, 0
        record = self.records[number]
        record[self.A_SLOT], record[self.A_INCARNATION] = slot, incarnation
        name = 32 * self.client + slot
        prompt = prompt_of(name, incarnation, ask.prompt)
        start = model.extent_of(name)
        for k in range(0, ask.prompt, 2):
            high = prompt[k + 1] if k + 1 < ask.prompt else 0
            self.staging[self.s_prompts + 8 * slot + k // 2] = prompt[k] | high << 32
        here = self.s_descriptor + at.DESCRIPTOR_WORDS * slot
        answer = answer_of(name, incarnation, ask.prompt, ask.tokens)
        descriptor = {
            at.Q_PROMPT_START: start if not ask.bad else -1,
            at.Q_PROMPT_LEN: ask.prompt,
            at.Q_OUTPUT_START: start + 8,
            at.Q_MAX_TOKENS: ask.tokens,
            at.Q_DEADLINE_NS: DEADLINE if ask.deadline else at.NO_DEADLINE,
            at.Q_TOP_P_MICRO: at.MICRO,
            at.Q_PRIORITY: ask.priority,
            at.Q_TENANT: self.first_ask + number + 1,
            at.Q_LOGPROBS: PAIRS if ask.logprobs else 0,
            at.Q_LOGPROBS_START: start + 2 * EXTENT if ask.logprobs else 0,
            at.Q_STOP_COUNT: 1 if ask.stops_at else 0,
            at.Q_STOP_0: answer[ask.stops_at - 1] if ask.stops_at else 0,
        }
        for word in range(at.DESCRIPTOR_WORDS):
            self.staging[here + word] = descriptor.get(word, 0)
        self.staging[self.s_req + slot] = self.words.pack_req(incarnation, self.words.SUBMIT)
        self.submit.Submitter._ring_bell(self, slot, incarnation)
        for column, value in enumerate(
            (slot, model.starts[at.ARENA] + start // 2, self.s_prompts + 8 * slot, (ask.prompt + 1) // 2)
        ):
            self.burst[row, column] = value
        self._track(slot, incarnation, start + 8, ask)

    @property
    def _doorbell(self) -> Window:
        """The doorbell words, as the real submitter keeps them."""
        return Window(self.staging, self.s_doorbell)

    def _track(self, slot: int, incarnation: int, output_start: int, ask: Ask) -> None:
        reader, record = self.reader, self.slots[slot]
        record[:] = [0] * len(record)
        record[reader.T_LIVE] = 1
        record[reader.T_INCARNATION] = incarnation
        record[reader.T_OUTPUT] = output_start
        record[reader.T_MAX_TOKENS] = ask.tokens
        if ask.logprobs:
            record[reader.T_PAIRS], record[reader.T_BY_EXTENT] = PAIRS, 1
            record[reader.T_RECORDS] = output_start + EXTENT
        self.active[self.marks[reader.M_ACTIVE]] = slot
        self.marks[reader.M_ACTIVE] += 1

    def _maybe_cancel(self) -> None:
        open_asks = [
            row for ask, row in zip(self.asks, self.records.rows, strict=True)
            if ask.cancel and row[self.A_SLOT] >= 0 and not row[self.A_ENDED] and not row[self.A_CANCELLED]
        ]  # fmt: skip
        choice = self.model.choose(1 + len(open_asks))
        if choice:
            row = open_asks[choice - 1]
            row[self.A_CANCELLED] = 1
            self._command(row[self.A_SLOT], self.words.CANCEL)

    def _command(self, slot: int, command: int) -> None:
        self.staging[self.s_req + slot] = self.words.pack_req(self.book[slot], command)
        self._run(self.operations.append(self.table, 0, self.operations.PUBLISH, self.r_req + slot,
                                         self.s_req + slot, 1))  # fmt: skip

    def _run(self, rows: int) -> None:
        """Execute the planned batch."""
        operations = self.operations
        if not self.plan.backwards:
            failed = self.shm.execute(self.table, rows, self.model.flat, self.staging)
            if failed >= 0:
                raise Violation("in-bounds", f"operation {failed} of a front end's batch")
            return
        single = Table(1, 4)
        for row in range(rows):
            kind, remote, local, words = self.table[row]
            if kind == operations.READ:
                for word in reversed(range(words)):
                    self.staging[local + word] = self.model.load_acquire(self.model.flat, remote + word)
            else:
                single.rows[0][:] = [kind, remote, local, words]
                self.shm.execute(single, 1, self.model.flat, self.staging)

    def _poll(self) -> bool:
        """One poll of the port: whether it brought anything."""
        reader = self.reader
        if not self.marks[reader.M_ACTIVE]:
            return False
        self._run(reader.plan_control(self.table, 0, self.places, self.active, self.marks))
        rows = reader.plan_tokens(self.table, self.places, self.staging, self.slots, self.active, self.marks)
        self._run(rows)
        before = [row[reader.T_CONSUMED] for row in self.slots.rows]
        count = reader.deliver(
            self.places, self.staging, self.narrow, self.slots, self.active, self.marks, self.events,
            self.fresh_tokens, self.fresh_records,
        )  # fmt: skip
        if self.marks[reader.M_VIOLATIONS]:
            raise Violation("own-tokens", "the reader saw a token beyond its extent")
        for event in range(count):
            self._take(self.events[event], before)
        return count > 0

    def _take(self, event: Words, before: list[int]) -> None:
        reader, model = self.reader, self.model
        slot, reason = event[reader.E_SLOT], event[reader.E_REASON]
        tokens = list(self.fresh_tokens[event[reader.E_START] : event[reader.E_END]])
        name = 32 * self.client + slot
        start = before[slot]
        for k in range(len(tokens)):
            # the extents are the truth: a client may read them as soon as it is told of the token
            model.read(model.ring.tokens, self.slots[slot][reader.T_OUTPUT] + start + k)
        self._check_records(event, tokens, start)
        incarnation = self.book[slot]

        def deliver() -> None:
            model.tell(self, f"gets tokens {tokens}" + (f" and the end, reason {reason}" if reason else ""))
            model.monitor.on_delivery(name, incarnation, start, tokens, reason)

        model.once(deliver)
        if reason:
            for row in self.records.rows:
                if row[self.A_SLOT] == slot and row[self.A_INCARNATION] == self.book[slot]:
                    row[self.A_ENDED] = 1
            self._command(slot, self.words.RELEASE)
            self.free[slot] = 1

    def _check_records(self, event: Words, tokens: list[int], start: int) -> None:
        """The pairs that came with tokens are theirs, and nobody writes them any more."""
        reader, model = self.reader, self.model
        pairs, first = event[reader.E_PAIRS], event[reader.E_RECORDS]
        if not pairs:
            return
        records = self.slots[event[reader.E_SLOT]][reader.T_RECORDS]
        for k, token in enumerate(tokens):
            model.read(model.ring.tokens, records + 2 * pairs * (start + k))
            found = list(self.fresh_records[first + pairs * k : first + pairs * (k + 1)])
            if found != record_of(token):
                raise Violation("own-tokens", f"token {token} came with log-probabilities {found}")

    # --- its place -----------------------------------------------------------------------------------

    def save(self) -> tuple:
        reader, marks = self.reader, self.marks
        for word in range(self.s_req):
            self.staging[word] = 0
        for mark in (reader.M_TOKENS, reader.M_OVERRUNS, reader.M_LOST, reader.M_EXTENT_READS):
            marks[mark] = 0
        marks[reader.M_ROTATION] %= 12
        for index in range(marks[reader.M_ACTIVE], len(self.active)):
            self.active[index] = 0
        for row in self.slots.rows:
            if not row[reader.T_LIVE]:
                row[:] = [0] * len(row)
            row[reader.T_EXTENT] = row[reader.T_AT] = row[reader.T_RECORDS_HERE] = 0
        return (
            marks.save(), self.active.save(), self.book.save(), self.free.save(),
            tuple(row.save() for row in self.slots.rows), tuple(row.save() for row in self.records.rows),
            tuple(self.staging[self.s_req : self.s_extents]),
        )  # fmt: skip

    def load(self, saved: tuple) -> None:
        marks, active, book, free, slots, records, staged = saved
        self.marks.load(marks)
        self.active.load(active)
        self.book.load(book)
        self.free.load(free)
        for row, values in zip((*self.slots.rows, *self.records.rows), (*slots, *records), strict=True):
            row.load(values)
        self.staging[self.s_req : self.s_extents] = staged


class Successor(FrontEnd):
    """Confirms a front end's death, fences it, waits until it is drained, and takes its place."""

    BORN, WAITING, AT_WORK = range(3)

    def __init__(self, model: Model, client: int) -> None:
        self._stage_of_life = self.BORN
        super().__init__(model, client, afterwards=True)
        transport: Any = model.copy.module("rdma.transport")
        staging: Any = model.copy.module("rdma.staging")
        ring_map = transport.RingMap(model.geometry, 1, model.spec.max_model_len, model.spec.vocab_size)
        self._share = staging.Share(ring_map, client)
        self._staging = staging.Staging(self._share)
        self._memory = np.zeros(self._staging.words, np.int64)
        self._staging.bind(self._memory)
        self.name = f"successor {client}"
        self.initial = OFF

    def body(self, lane: int) -> None:
        model, at = self.model, self.model.at
        fencing: Any = model.copy.module("rdma.fencing")
        line = self.client * at.FE_WORDS
        if self._stage_of_life == self.BORN:
            fencing._raise_fence(model.ring.fe_fence, line + at.F_FENCE)
            self._stage_of_life = self.WAITING
        if self._stage_of_life == self.WAITING:
            while True:
                model.head()
                generation = model.load_acquire(model.ring.fe_fence, line + at.F_FENCE)
                if fencing._drained(model.ring.fe_sched, line + at.D_DRAINED) == generation:
                    break
            self._occupy()
            self._stage_of_life = self.AT_WORK
        super().body(lane)

    def _occupy(self) -> None:
        """The real taking of a drained predecessor's place."""
        attach: Any = self.model.copy.module("rdma.attach")
        tracker = self.model.copy.module("rdma.slots").SlotTracker(self._share.slots)
        self._memory[:] = 0
        try:
            head = attach._occupy(self, self._share, self._staging, tracker, 1)
        except attach.AttachError as error:
            raise Violation("quiet-successor", str(error)) from None
        for slot in range(self.plan.slots):
            self.book[slot] = int(tracker.incarnation[slot])
        self.staging[self.s_doorbell] = int(self._staging.view("doorbell")[0])
        self.marks[self.reader.M_TAIL] = self.marks[self.reader.M_HEAD] = head

    # the transport that `rdma.attach` is given

    def post(self, batch: Any) -> None:
        """Execute a batch."""
        failed = self.shm.execute(batch.table, batch.count, self.model.flat, self._memory)
        if failed >= 0:
            raise Violation("in-bounds", f"operation {failed} of a successor's batch")

    def complete(self) -> None:
        """A batch has run when its post returns."""

    def identity(self) -> tuple[int, int]:
        """Process and its start."""
        return 1, 1

    def save(self) -> tuple:
        return (self._stage_of_life, super().save())

    def load(self, saved: tuple) -> None:
        self._stage_of_life = saved[0]
        super().load(saved[1])
