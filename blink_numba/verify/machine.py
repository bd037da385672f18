"""The protocol as a Hypothesis state machine: Hypothesis chooses setup and schedule, and shrinks both."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from blink_numba.verify.memory import Violation
from blink_numba.verify.model import Model
from blink_numba.verify.places import CRASH, State
from blink_numba.verify.setup import Ask, Client, Setup
from blink_numba.verify.walk import random_chooser

LONGEST_END = 8000  # moves in which everything must have ended, once all actors move evenly


@st.composite
def asks(draw: st.DrawFn, most: int) -> tuple[Ask, ...]:
    """Requests of a front end."""
    count = draw(st.integers(1, most))
    found = []
    for _ in range(count):
        tokens = draw(st.integers(1, 5))
        found.append(
            Ask(
                prompt=draw(st.integers(1, 5)),
                tokens=tokens,
                stops_at=draw(st.sampled_from([0, 0, 0, tokens])),
                cancel=draw(st.booleans()),
                bad=draw(st.integers(0, 9)) == 0,
                priority=draw(st.integers(0, 2)),
            )
        )
    return tuple(found)


@st.composite
def setups(draw: st.DrawFn, policies: tuple[str, ...] = ("fcfs", "srpt", "mlfq")) -> Setup:
    """Setups with one or two front ends, one to three seats, few blocks, one or two lanes."""
    clients = []
    for _ in range(draw(st.integers(1, 2))):
        crash = draw(st.booleans())
        clients.append(
            Client(
                draw(asks(4)), slots=draw(st.integers(1, 3)), burst=draw(st.booleans()), crash=crash,
                afterwards=draw(asks(2)) if crash else (), backwards=draw(st.booleans()),
            )
        )  # fmt: skip
    block_size = draw(st.sampled_from([1, 2, 4]))
    whole = -(-10 // block_size)  # blocks of the longest request
    lanes = draw(st.sampled_from([1, 1, 2]))
    return Setup(
        "drawn", "Drawn by Hypothesis.", tuple(clients), lanes=lanes,
        seats=draw(st.integers(1, 3)), blocks=whole + draw(st.integers(0, 6)), block_size=block_size,
        prefill_tokens=draw(st.sampled_from([2, 4, 8])), prefill_sequences=draw(st.integers(1, 3)),
        window=draw(st.sampled_from([2, 3, 120])), log_entries=128, policy=draw(st.sampled_from(policies)),
        records_scanned=draw(st.booleans()), pipelined=lanes == 1 and draw(st.booleans()),
    )  # fmt: skip


class ProtocolMachine(RuleBasedStateMachine):
    """Moves actors as Hypothesis says; the model's monitor checks every access."""

    model: Model
    state: State
    violation: Violation | None = None

    @initialize(setup=setups())
    def begin(self, setup: Setup) -> None:
        self.model = Model(setup)
        self.state = self.model.start()

    @rule(actor=st.integers(0, 6), times=st.integers(1, 40), choice=st.integers(0, 2))
    def run(self, actor: int, times: int, choice: int) -> None:
        """Let one actor make some moves; `choice` is what it does where it has one."""
        for _ in range(times):
            moves = [move for move in self.model.moves(self.state) if move[1] != CRASH]
            mine = [move for move in moves if move[0] == actor % len(self.model.actors)]
            if not mine:
                return
            self._move(mine[choice % len(mine)])

    @precondition(lambda self: any(move[1] == CRASH for move in self.model.moves(self.state)))
    @rule()
    def die(self) -> None:
        """A front end dies where it stands."""
        self._move(next(move for move in self.model.moves(self.state) if move[1] == CRASH))

    @rule(seed=st.integers(0, 1000), times=st.integers(1, 200))
    def run_all(self, seed: int, times: int) -> None:
        """All actors move, in an order of the seed."""
        choose = random_chooser(seed)
        for _ in range(times):
            self._move(choose(self.state, [m for m in self.model.moves(self.state) if m[1] != CRASH]))

    def _move(self, move: tuple[int, int]) -> None:
        try:
            self.state = self.model.move(self.state, *move)
        except Violation as violation:
            self.violation = violation
            raise

    def teardown(self) -> None:
        """Everything must come to an end now."""
        if not hasattr(self, "model"):
            return
        try:
            if self.violation is None:
                self._end()
        finally:
            self.model.copy.close()

    def _end(self) -> None:
        choose = random_chooser(0)
        for _ in range(LONGEST_END):
            if self.model.is_goal(self.state):
                self.model.check_goal(self.state)
                return
            self._move(choose(self.state, [m for m in self.model.moves(self.state) if m[1] != CRASH]))
        raise Violation("progress", f"no end after {LONGEST_END} even moves")
