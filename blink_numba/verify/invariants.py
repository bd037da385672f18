"""What must hold of the slot protocol: each invariant with its name and its sentence.

The monitor looks at every access to a control word while the model runs; a check that fails
raises `Violation` with the invariant's name. The real-concurrency tests check the same list
on histories (`blink_numba.verify.threads`), as far as it can be seen from outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blink_numba.verify.answers import answer_of
from blink_numba.verify.memory import Violation
from blink_numba.verify.setup import STOP

if TYPE_CHECKING:
    from blink_numba.verify.model import Model

INVARIANTS = {
    "legal-edges": "A control word only takes the edges of `ring.states.EDGES`, each by its owner.",
    "own-words": "Nobody writes a word, an extent or a slot that is another's.",
    "in-bounds": "No access lies outside of what it means to touch.",
    "own-tokens": "A slot's tokens are those of its incarnation's request, in order, none lost or doubled.",
    "log-covers-count": "A token that a control word counts is in the token log below its head.",
    "ends-once": "A request ends exactly once; its slot is not touched after that.",
    "true-reason": "A request ends for the reason that it gives.",
    "delivered-in-order": "A client gets each token once, in order, and the end after the last.",
    "submit-to-empty": "A request is written only to a slot that is EMPTY, with the next incarnation.",
    "release-after-read": "A slot is released only after its end was seen and its tokens were read.",
    "one-owner": "Each seat and each block has one owner: a request or the free list.",
    "no-leak": "When nothing is live, all seats and all blocks are free.",
    "ends-within-one-step": "After a cancel or a declared death, at most one more step (two, where steps are "
    "launched ahead) runs with the request in it; none after a cancel that its claim saw, and no step while "
    "one that waits is known to end.",
    "window": "No launch goes beyond the window.",
    "own-blocks": "A decode step writes only to blocks that its seats hold.",
    "work-conserving": "First come, first served launches no step past the oldest that waits while a seat "
    "and its blocks are free, no decode step past a prefill that has a seat.",
    "heeds-the-host": "No step is launched in a turn that saw the host ask for a park.",
    "exec-idle": "No executable is launched that may still run, and one step is in flight at a time.",
    "drained-is-quiet": "When a dead front end is reported drained, its slots are quiet.",
    "quiet-successor": "A successor finds no slot of its share in use.",
    "no-fault": "The scheduler finds no fault where there is none.",
    "no-data-race": "Accesses to a payload are ordered by a release and its acquire, or a barrier.",
    "progress": "From every state there is a way to the end of all requests.",
}

# words the monitor remembers of a slot
G_LOGGED, G_LAUNCHES, G_DELIVERED, G_ENDED = range(4)
SLOT_GHOSTS = 4
# and of the whole
G_IN_FLIGHT, G_FENCED, G_WINDOW = range(3)
GHOSTS = 4


class Monitor:
    """Checks the invariants of a model as it runs."""

    def __init__(self, model: Model) -> None:
        self.model = model
        copy = model.copy
        self.words: Any = copy.module("ring.words")
        self.states: Any = copy.module("ring.states")
        self._edges = {(int(a), int(b)): owner for (a, b), (owner, _) in self.states.EDGES.items()}

    # --- words of the protocol -------------------------------------------------------------------

    def on_ctl(self, slot: int, actor: int, before: int, after: int) -> None:
        """A control word changes."""
        words, states, model = self.words, self.states, self.model
        if actor != model.scheduler.index and model.actors[actor] not in model.again:
            raise Violation("own-words", f"{model.actors[actor].name} wrote the control word of slot {slot}")
        old, new = words.ctl_state(before), words.ctl_state(after)
        count, reason = words.ctl_tokens(after), words.ctl_reason(after)
        names = f"slot {slot}: {states.State(old).name} → {states.State(new).name}"
        ghost = GHOSTS + slot_ghost(model, slot)
        if words.ctl_incarnation(after) != words.ctl_incarnation(before):
            if words.ctl_incarnation(after) != words.next_incarnation(words.ctl_incarnation(before)):
                raise Violation("legal-edges", f"{names}: incarnation {words.ctl_incarnation(before)} "
                                f"became {words.ctl_incarnation(after)}")  # fmt: skip
            if states.is_live(old) or new != states.PREFILL_PENDING or count:
                raise Violation("legal-edges", f"{names} of the next incarnation, {count} tokens")
            for word in range(SLOT_GHOSTS):
                model.ghost[ghost + word] = 0
            request = model.memory[model.ring.req.where[slot]]
            model.ghost[ghost + G_LAUNCHES] = words.req_command(request) == words.CANCEL
        else:
            if old == states.DECODE_COMPLETED:
                raise Violation("ends-once", f"slot {slot} was written after its end")
            if old == states.EMPTY:
                raise Violation("legal-edges", f"{names} without the next incarnation")
            if old != new and self._edges.get((old, new)) != states.SCHEDULER:
                raise Violation("legal-edges", names)
            if count not in (words.ctl_tokens(before), words.ctl_tokens(before) + 1):
                raise Violation(
                    "own-tokens", f"slot {slot}: {words.ctl_tokens(before)} tokens became {count}"
                )
        if (reason != 0) != (new == states.DECODE_COMPLETED):
            raise Violation("true-reason", f"{names} with reason {reason}")
        self._check_tokens(slot, after, count)
        if count > model.ghost[ghost + G_LOGGED]:
            raise Violation(
                "log-covers-count",
                f"slot {slot} counts {count} tokens, its log {model.ghost[ghost + G_LOGGED]}",
            )
        if new == states.DECODE_COMPLETED:
            model.ghost[ghost + G_ENDED] = reason
            self._check_reason(slot, after, count, reason)

    def _check_tokens(self, slot: int, word: int, count: int) -> None:
        model = self.model
        plan = model.plan_of(slot, self.words.ctl_incarnation(word))
        if plan is None:
            if count:
                raise Violation("own-tokens", f"slot {slot} has {count} tokens of no request")
            return
        if count > plan.ask.tokens:
            raise Violation("own-tokens", f"slot {slot} has {count} of {plan.ask.tokens} tokens")
        # the answer's last word: earlier ones were checked when they were last
        if count:
            at = model.ring.tokens.where[plan.output_start + count - 1]
            if model.memory[at] != plan.answer[count - 1]:
                raise Violation(
                    "own-tokens",
                    f"token {count - 1} of slot {slot} is {model.memory[at]}, not {plan.answer[count - 1]}",
                )

    def _check_reason(self, slot: int, word: int, count: int, reason: int) -> None:
        states, words, model = self.states, self.words, self.model
        plan = model.plan_of(slot, words.ctl_incarnation(word))
        ask = plan.ask if plan is not None else None
        stops = bool(ask and ask.stops_at and count == ask.stops_at)
        command = words.req_command(model.memory[model.ring.req.where[slot]])
        client = model.client_of(slot)
        true = {
            states.R_STOP: stops,
            states.R_LENGTH: bool(ask and count == ask.tokens and not stops),
            states.R_CANCELLED: command == words.CANCEL,
            states.R_DEADLINE: bool(ask and ask.deadline and model.time_is_up()),
            states.R_ABORTED: bool(model.fence_of(client)),
            states.R_REJECTED: bool(ask and ask.bad),
            states.R_SHUTDOWN: model.stop_asked() == 2,
            states.R_ERROR: bool(model.again) and model.current in model.again,
        }.get(reason, False)
        if not true:
            raise Violation("true-reason", f"slot {slot} ended as {states.Reason(reason).name} "
                            f"with {count} tokens, command {command}")  # fmt: skip

    def on_req(self, slot: int, actor: int, before: int, after: int) -> None:
        """A request word changes."""
        words, states, model = self.words, self.states, self.model
        if model.actors[actor] not in model.clients_of(slot):
            raise Violation("own-words", f"{model.actors[actor].name} wrote the request word of slot {slot}")
        ctl = model.memory[model.ring.ctl.where[2 * slot]]
        incarnation, command = words.req_incarnation(after), words.req_command(after)
        if command == words.SUBMIT:
            empty = states.slot_state(ctl, before) == states.EMPTY
            if not empty or incarnation != words.next_incarnation(words.ctl_incarnation(ctl)):
                raise Violation(
                    "submit-to-empty",
                    f"slot {slot}: incarnation {incarnation} over {states.State(words.ctl_state(ctl)).name} "
                    f"of {words.ctl_incarnation(ctl)}",
                )
        elif command == words.RELEASE:
            done = words.ctl_state(ctl) == states.DECODE_COMPLETED
            ghost = GHOSTS + slot_ghost(model, slot)
            all_read = self._all_read(ctl, model.ghost[ghost + G_DELIVERED])
            if not done or incarnation != words.ctl_incarnation(ctl):
                raise Violation("release-after-read", f"slot {slot} released before its end")
            if not all_read and not model.is_successor(actor):
                raise Violation("release-after-read", f"slot {slot} released before its tokens were read")

    def _all_read(self, ctl: int, delivered: int) -> bool:
        """Whether a client has all that a control word counts.

        A scheduler may die between the log's head and the control word: the one that ends the
        request (ERROR) counts a token less than the log has brought.
        """
        lead = delivered - self.words.ctl_tokens(ctl)
        return lead == 0 or (lead == 1 and self.words.ctl_reason(ctl) == self.states.R_ERROR)

    def on_head(self, front_end: int, actor: int, before: int, after: int) -> None:
        """A token log grows."""
        model, words = self.model, self.words
        entries = model.setup.log_entries
        if not before < after <= before + entries:
            raise Violation("own-tokens", f"log head went from {before} to {after}")
        for position in range(before, after):
            entry = model.memory[model.ring.log.where[front_end * entries + position % entries]]
            slot = words.log_slot(entry)
            if slot not in model.slots_used:
                raise Violation("own-tokens", f"log entry {position} names slot {slot}")
            ghost = GHOSTS + slot_ghost(model, slot)
            number = model.ghost[ghost + G_LOGGED]
            incarnation = words.ctl_incarnation(model.memory[model.ring.ctl.where[2 * slot]])
            plan = model.plan_of(slot, incarnation)
            if plan is None or number >= len(plan.answer) or plan.answer[number] != words.log_token(entry):
                raise Violation("own-tokens", f"log entry {position} is token {words.log_token(entry)} "
                                f"of slot {slot}, its number {number}")  # fmt: skip
            model.ghost[ghost + G_LOGGED] = number + 1

    def on_drained(self, front_end: int, actor: int, before: int, after: int) -> None:
        """The scheduler says that a dead front end's slots are quiet."""
        model, words, states = self.model, self.words, self.states
        if after != model.fence_of(front_end):
            raise Violation(
                "drained-is-quiet", f"generation {after} drained, {model.fence_of(front_end)} fenced"
            )
        for slot in model.slots_used:
            if model.client_of(slot) != front_end:
                continue
            ctl, req = (model.memory[array.where[at]] for array, at in
                        ((model.ring.ctl, 2 * slot), (model.ring.req, slot)))  # fmt: skip
            if states.is_live(words.ctl_state(ctl)):
                raise Violation(
                    "drained-is-quiet", f"slot {slot} is {states.State(words.ctl_state(ctl)).name}"
                )
            if words.req_incarnation(req) != words.ctl_incarnation(ctl):
                raise Violation("drained-is-quiet", f"slot {slot} has a request that was never claimed")

    # --- launches ----------------------------------------------------------------------------------

    def before_launch(self, launcher: Any, executable: int) -> None:
        """The scheduler launches."""
        model = self.model
        if model.ghost[G_WINDOW] >= model.setup.window:
            raise Violation(
                "window", f"launch {model.ghost[G_WINDOW] + 1} of a window of {model.setup.window}"
            )
        if not model.ghost[G_IN_FLIGHT]:
            return
        grid: Any = model.copy.module("graphs.grid")
        behind = model.setup.pipelined and model.table.kind[executable // grid.EXECS] == grid.DECODE
        if not behind or model.ghost[G_IN_FLIGHT] > 1:
            raise Violation("exec-idle", "a step was launched while another is in flight")

    def on_running(self, executable: int, actor: int, before: int, after: int) -> None:
        """An executable begins or ends to run."""
        if after and before:
            raise Violation("exec-idle", f"executable {executable} launched while it runs")

    def on_sent(self, actor: int, before: int, after: int) -> None:
        """A launch reaches the engine."""
        model, words = self.model, self.words
        model.ghost[G_IN_FLIGHT] += 1
        model.ghost[G_WINDOW] += 1
        self._check_batch()
        for slot in model.slots_in_step():
            req, ctl = model.memory[model.ring.req.where[slot]], model.memory[model.ring.ctl.where[2 * slot]]
            cancelled = words.req_command(req) == words.CANCEL
            cancelled &= words.req_incarnation(req) == words.ctl_incarnation(ctl)
            if not cancelled and not model.is_dying(model.client_of(slot)):
                continue
            ghost = GHOSTS + slot_ghost(model, slot) + G_LAUNCHES
            model.ghost[ghost] += 1
            if model.ghost[ghost] > 1 + model.setup.pipelined:
                raise Violation(
                    "ends-within-one-step", f"slot {slot}: a step too many after its cancel or death"
                )

    def _check_batch(self) -> None:
        """Whether the step being launched is the one that is due. In the scheduler's own move."""
        model, sc, setup = self.model, self.model.sc, self.model.setup
        get, core, seats, slots = list.__getitem__, model.state.core, model.state.seats, model.state.slots
        if get(core, sc.K_PARK):
            raise Violation("heeds-the-host", "a step was launched after the host asked for a park")
        decodes = get(core, sc.K_PLAN) == sc.DECODE_STEP
        rows = get(core, sc.K_IN_FLIGHT_ROWS) if decodes else 0
        for row in range(rows):
            here = model.peek(model.io.decode_rows, row) * sc.SEAT_WORDS
            held, position = get(seats, here + sc.SE_BLOCKS), get(seats, here + sc.SE_COMPUTED)
            position += get(core, sc.K_AHEAD)  # behind a step whose token is not counted yet
            if position >= held * setup.block_size:
                raise Violation("own-blocks", f"row {row} decodes position {position}, of {held} blocks")
        waiting = get(core, sc.K_WAITING)
        queue = [get(model.state.waiting, index) * sc.SLOT_WORDS for index in range(waiting)]
        for record in queue:
            if get(slots, record + sc.SL_DOOM):
                slot = record // sc.SLOT_WORDS
                raise Violation("ends-within-one-step", f"slot {slot} waits on, though it is known to end")
        if setup.policy != "fcfs":
            return
        seated = get(core, sc.K_SEATED)
        if decodes and seated > rows:
            raise Violation("work-conserving", f"{rows} of {seated} seats decode, the others' prefills wait")
        if not waiting or not get(core, sc.K_SEATS_FREE) or get(core, sc.K_STOP) == STOP:
            return
        oldest = min(queue, key=lambda record: get(slots, record + sc.SL_TICKET))
        tokens = get(slots, oldest + sc.SL_PROMPT_LEN) + get(slots, oldest + sc.SL_GENERATED) + 1
        free = get(core, sc.K_BLOCKS_FREE) + tokens // -setup.block_size
        if free >= seated:  # one for each that is seated is kept back
            raise Violation("work-conserving", f"slot {oldest // sc.SLOT_WORDS} waits beside a free seat, "
                            f"{get(core, sc.K_BLOCKS_FREE)} blocks are free")  # fmt: skip

    def on_done(self, actor: int, before: int, after: int) -> None:
        """A step is done."""
        self.model.ghost[G_IN_FLIGHT] -= 1

    def on_window(self) -> None:
        """A new window begins."""
        if self.model.ghost[G_IN_FLIGHT]:
            raise Violation("window", "a window was closed with a step in flight")
        self.model.ghost[G_WINDOW] = 0

    # --- books -------------------------------------------------------------------------------------

    def on_delivery(self, slot: int, incarnation: int, start: int, tokens: list[int], reason: int) -> None:
        """A client is given tokens, or the end."""
        model = self.model
        ghost = GHOSTS + slot_ghost(model, slot)
        plan = model.plan_of(slot, incarnation)
        assert plan is not None
        if start != model.ghost[ghost + G_DELIVERED]:
            raise Violation("delivered-in-order", f"slot {slot}: token {start} after "
                            f"{model.ghost[ghost + G_DELIVERED]} delivered")  # fmt: skip
        if tokens != plan.answer[start : start + len(tokens)]:
            raise Violation("delivered-in-order", f"slot {slot}: {tokens} delivered at {start} "
                            f"of {plan.answer}")  # fmt: skip
        model.ghost[ghost + G_DELIVERED] += len(tokens)
        if reason:
            ctl = model.memory[model.ring.ctl.where[2 * slot]]
            if reason != self.words.ctl_reason(ctl) or not self._all_read(ctl, start + len(tokens)):
                raise Violation("delivered-in-order", f"slot {slot} ended for its client with {reason} after "
                                f"{start + len(tokens)} tokens")  # fmt: skip

    def check_books(self) -> None:
        """Seats and blocks, at the scheduler's loop head."""
        model, sc = self.model, self.model.sc
        core, seats = model.state.core, model.state.seats
        taken = [
            seat
            for seat in range(model.setup.seats)
            if seats[seat * sc.SEAT_WORDS + sc.SE_SLOT] != sc.NO_SLOT
        ]
        free = [model.state.free_seats[k] for k in range(core[sc.K_SEATS_FREE])]
        if sorted(taken + free) != list(range(model.setup.seats)) or core[sc.K_SEATED] != len(taken):
            raise Violation("one-owner", f"seats taken {taken}, free {free}, counted {core[sc.K_SEATED]}")
        held = []
        for seat in taken:
            row = seat * model.blocks_per_seat
            held += [model.peek(model.io.block_table, row + k)
                     for k in range(seats[seat * sc.SEAT_WORDS + sc.SE_BLOCKS])]  # fmt: skip
        free = [model.state.free_blocks[k] for k in range(core[sc.K_BLOCKS_FREE])]
        if sorted(held + free) != list(range(model.setup.blocks)):
            raise Violation("one-owner", f"blocks held {held}, free {free}")

    def check_end(self, core: tuple[int, ...]) -> None:
        """At the end of everything."""
        sc, setup = self.model.sc, self.model.setup
        if core[sc.K_BLOCKS_FREE] != setup.blocks or core[sc.K_SEATS_FREE] != setup.seats:
            raise Violation(
                "no-leak", f"{core[sc.K_SEATS_FREE]} seats and {core[sc.K_BLOCKS_FREE]} blocks free"
            )


def slot_ghost(model: Model, slot: int) -> int:
    """Offset of a slot's remembered words."""
    return model.slot_order[slot] * SLOT_GHOSTS


def expected(slot: int, incarnation: int, prompt: int, tokens: int) -> list[int]:
    """The answer that a request must get."""
    return answer_of(slot, incarnation, prompt, tokens)
