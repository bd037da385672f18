"""The actors of the model: scheduler, engine, front ends, hosts. Protocol code is the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blink_numba.verify.answers import next_token, record_of
from blink_numba.verify.memory import Violation, Words
from blink_numba.verify.places import OFF, Actor, Place
from blink_numba.verify.setup import PARK

if TYPE_CHECKING:
    from blink_numba.verify.model import Model

LATER = 1_000_000  # nanoseconds; when deadlines have passed
DEADLINE = 1_000


class Scheduler(Actor):
    """The real loop around the real turn; with several lanes, the loop of a kernel."""

    name = "scheduler"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.model = model
        self.lanes = model.setup.lanes
        sc = model.sc
        used = (max(model.slots_used) + 1) * sc.SLOT_WORDS
        state = model.state
        self._kept: list[tuple[Any, int | None]] = [
            (state.core, None), (state.parity, None), (state.claimed, None), (state.slots, used),
            (state.waiting, len(model.slots_used)), (state.seats, None), (state.rows, None),
            (state.free_seats, None), (state.free_blocks, None), (state.graph_turn, None),
            (state.front_ends, None), (state.policy, sc.P_ACCOUNTS),
        ]  # fmt: skip
        # counters that decide nothing: left out, so that states merge
        self._counters = (
            sc.K_LOOPS, sc.K_RECORDS, sc.K_LAUNCHES, sc.K_WINDOWS, sc.K_RETRIES, sc.K_PREFILLS, sc.K_DECODES,
            sc.K_TOKENS, sc.K_FINISHED, sc.K_PREEMPTIONS, sc.K_CLAIMS, sc.K_BOUNDARY, sc.K_VERDICT,
            sc.K_GOES_ON, sc.K_QUIET, sc.K_COLLECTED, sc.K_COLLECTED_ROWS, sc.K_COLLECTED_STEP, sc.K_FAULT,
        )  # fmt: skip

    def body(self, lane: int) -> None:
        model, policy = self.model, self.model.policy
        functions = (policy.key, policy.may_admit, policy.prefill_or_decode, policy.victim)
        if self.lanes == 1:
            loop: Any = model.copy.module("scheduler.loops.cpu")
            verdict = model.sc.PARKED
            while verdict == model.sc.PARKED:
                model.head()
                verdict = loop.run(
                    model.ring, None, model.state, model.io, model.table, model.launcher, *functions
                )
        else:
            verdict = self._lane_loop(lane, functions)
        if verdict == model.sc.FAULTED:
            raise Violation("no-fault", f"error {model.state.core[model.sc.K_ERROR]}")

    def _lane_loop(self, lane: int, functions: tuple) -> int:
        model, sc = self.model, self.model.sc
        turn: Any = model.copy.module("scheduler.turn").turn
        loop: Any = model.copy.module("scheduler.loops.cpu")
        while True:
            now = model.now_ns()
            verdict = turn(
                model.ring,
                model.state,
                model.io,
                model.table,
                model.launcher,
                *functions,
                lane,
                self.lanes,
                now,
            )
            if verdict == sc.CLOSE_WINDOW and lane == 0:
                loop.close_window(model.ring, model.state, model.launcher, now)
            if verdict in (sc.STOPPED, sc.FAULTED):
                return verdict

    def save(self) -> tuple:
        model, sc = self.model, self.model.sc
        core = model.state.core
        put, get = list.__setitem__, list.__getitem__
        for counter in self._counters:
            put(core, counter, 0)
        stacks = (
            (model.state.free_seats, sc.K_SEATS_FREE),
            (model.state.free_blocks, sc.K_BLOCKS_FREE),
            (model.state.waiting, sc.K_WAITING),
        )
        for stack, count in stacks:
            for index in range(get(core, count), len(stack)):
                if get(stack, index):
                    put(stack, index, 0)
        if self.threads:
            model.monitor.check_books()
        return (
            *(words.save(count) for words, count in self._kept),
            model.launcher.core.cells[model.window_word],
        )

    def load(self, saved: tuple) -> None:
        for (words, _), values in zip(self._kept, saved, strict=False):
            words.load(values)
        self.model.launcher.core.cells[self.model.window_word] = saved[-1]

    def core_of(self, place: Place) -> tuple[int, ...]:
        """The core words at the last loop head of a place."""
        return place.head[0]


class Engine(Actor):
    """The engine: keeps tokens in cache blocks, and answers from what the block tables name."""

    name = "engine"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.model = model
        self._cache = Words([0] * (model.setup.blocks * model.setup.block_size))
        self._taken = 0

    def body(self, lane: int) -> None:
        model = self.model
        launcher: Any = model.copy.module("graphs.launcher")
        grid: Any = model.copy.module("graphs.grid")
        step_io: Any = model.copy.module("graphs.step_io")
        control = model.io.control
        while True:
            model.head()
            executable = launcher.peek(model.launcher, self._taken)
            if executable < 0:
                continue
            self._taken += 1
            graph = executable // grid.EXECS
            decodes, shape = model.table.kind[graph] == grid.DECODE, model.table.shape[graph]
            if decodes:
                self._decode(shape)
            else:
                self._prefill(shape)
            if decodes and model.setup.pipelined:
                self._hand_on(shape, control[step_io.TICKET])
            else:
                control[step_io.FAULT] = 0
                model.store_release(control, step_io.DONE, control[step_io.TICKET])
            launcher.retire(model.launcher, executable)

    def _decode(self, batch: int) -> None:
        io = self.model.io
        for row in range(batch):
            seat = io.decode_rows[row]
            if seat >= 0:
                self._answer(seat, self._forward(seat, io.seat_position[seat], io.seat_token[seat]))

    def _hand_on(self, batch: int, ticket: int) -> None:
        io, ahead = self.model.io, self.model.copy.module("graphs.ahead")
        ahead.hand_on(
            ticket, io.decode_rows, batch, io.seat_position, io.out_token, io.seat_token, io.seat_position,
            io.late_token, 0, 1,
        )  # fmt: skip
        ahead.release_ahead(io.control, ticket, 0)

    def _prefill(self, size: int) -> None:
        io = self.model.io
        last: dict[int, int] = {}
        for index in range(size):
            seat = io.prefill_seat[index]
            if seat >= 0:
                last[seat] = self._forward(seat, io.prefill_position[index], io.prefill_token[index])
        for run in range(io.run_seat.shape[0]):
            seat = io.run_seat[run]
            if seat >= 0 and io.run_samples[run]:
                self._answer(seat, last[seat])

    def _answer(self, seat: int, token: int) -> None:
        model = self.model
        io, step_io = model.io, model.copy.module("graphs.step_io")
        io.out_token[seat] = token
        if model.logprobs and io.sampling[seat * step_io.SAMPLING_WORDS + step_io.LOGPROBS]:
            record = step_io.record_at(io.control[step_io.TICKET], model.setup.seats, seat)
            for word, pair in enumerate(record_of(token)):
                io.out_logprobs[record + word] = pair

    def _forward(self, seat: int, position: int, token: int) -> int:
        self._cache[self._at(seat, position)] = token
        return next_token([self._cache[self._at(seat, earlier)] for earlier in range(position + 1)])

    def _at(self, seat: int, position: int) -> int:
        model = self.model
        block = model.io.block_table[seat * model.blocks_per_seat + position // model.setup.block_size]
        return block * model.setup.block_size + position % model.setup.block_size

    def save(self) -> tuple:
        return (self._taken, *self._cache)

    def load(self, saved: tuple) -> None:
        self._taken = saved[0]
        self._cache.load(saved[1:])


class SchedulerAgain(Scheduler):
    """The scheduler of another process, which takes the ring over with a fresh state."""

    name = "scheduler again"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.initial = OFF
        self._adopted = 0

    def body(self, lane: int) -> None:
        model = self.model
        if not self._adopted:
            recovery: Any = model.copy.module("scheduler.recovery")
            recovery._forget_slots(model.ring, model.state)
            states, words = model.copy.module("ring.states"), model.copy.module("ring.words")
            pending = [
                slot
                for slot in model.slots_used
                if words.ctl_state(model.load_relaxed(model.ring.ctl, 2 * slot)) == states.PREFILL_PENDING
            ]
            recovery._enqueue_in_order(model.ring, model.state, pending, 0)
            self._adopted = 1
        super().body(lane)

    def save(self) -> tuple:
        return (*super().save(), self._adopted)

    def load(self, saved: tuple) -> None:
        self._adopted = saved[-1]
        super().load(saved[:-1])


class EngineAgain(Engine):
    """The engine of that process."""

    name = "engine again"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.initial = OFF


class Host(Actor):
    """Asks the scheduler to drain, to stop or to park, once, at any moment."""

    name = "host"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.model = model
        self._asked = 0

    def body(self, lane: int) -> None:
        model = self.model
        command = model.ring.command
        if model.setup.stop != PARK:
            model.store_release(command, model.at.C_STOP, model.setup.stop)
            return
        if not self._asked:
            model.store_release(command, model.at.C_PARK, 1)
            self._asked = 1
        while model.load_acquire(model.ring.status, model.at.S_PHASE) != model.at.PHASE_PARKED:
            model.head()
        model.store_release(command, model.at.C_PARK, 0)

    def save(self) -> tuple:
        return (self._asked,)

    def load(self, saved: tuple) -> None:
        self._asked = saved[0]


class Time(Actor):
    """Lets the deadlines pass, at any moment."""

    name = "time"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.model = model

    def body(self, lane: int) -> None:
        self.model.store_relaxed(self.model.clock_word, 0, LATER)

    def save(self) -> tuple:
        return ()

    def load(self, saved: tuple) -> None:
        return None
