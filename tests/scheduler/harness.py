"""A scheduler stepped turn by turn over an engine that answers by a formula.

The formula's token depends on all tokens before it, so a lost, doubled or reordered one
shows in every one that follows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphs.grid import DECODE, EXECS, make_table, shapes, table_view
from graphs.launcher import launcher_view, make_launcher, open_window, peek, pipelined_view, retire
from graphs.step_io import (
    DONE,
    FAULT,
    LOGPROBS,
    SAMPLING_WORDS,
    TICKET,
    EngineSpec,
    format_step,
    record_at,
    step_view,
    step_words,
)
from ring import layout as at
from ring.layout import RingGeometry
from ring.python_copy import PythonCopy
from ring.states import State
from ring.views import format_ring, host_view
from ring.words import (
    CANCEL,
    RELEASE,
    SUBMIT,
    ctl_incarnation,
    ctl_reason,
    ctl_state,
    ctl_tokens,
    pack_req,
    req_incarnation,
)
from scheduler import state as sc
from scheduler.build import set_up
from scheduler.policies import SHIPPED, find

# The step's own source, uncompiled: a test starts at once and can be stepped in a debugger.
COPY = PythonCopy("scheduler_tests")
_turn = COPY.module("scheduler.turn").turn
_ahead = COPY.module("graphs.ahead")

EOS = 2
SMALL = EngineSpec(
    seats=4, decode_batches=(1, 2, 4), prefill_tokens=(16, 64), prefill_sequences=4, block_size=16, blocks=40,
    blocks_per_seat=16, max_model_len=256, vocab_size=512, eos_ids=(EOS,),
)  # fmt: skip


def next_token(history: list[int]) -> int:
    """What the engine samples after `history`; never EOS."""
    mixed = 17
    for token in history:
        mixed = (mixed * 31 + token + 7) % 1_000_003
    return 3 + mixed % 500


def pairs_of(history: list[int], pairs: int) -> list[int]:
    """What the engine tells of the token after `history`, packed."""
    first = next_token(history)
    return [(first * 1000 + k) << 32 | (first + 7 * k) for k in range(pairs)]


@dataclass(frozen=True)
class Answer:
    """What a slot holds."""

    incarnation: int
    state: State
    reason: int
    tokens: list[int]


class Bench:
    """Ring, state, launcher and formula engine; `turn` runs one turn, `step` also the engine.

    Parameters
    ----------
    spec, geometry
        Sizes.
    policy : str
        Name of a shipped policy.
    pipelined : bool
        Whether decode steps are launched ahead.
    """

    def __init__(
        self, spec: EngineSpec = SMALL, *, slots: int = 64, front_ends: int = 1, policy: str = "fcfs",
        pipelined: bool = False,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.share = 512
        self.geometry = RingGeometry(
            slots=slots, front_ends=front_ends, arena_tokens=slots * self.share, log_entries=256,
            flight_entries=1024,
        )  # fmt: skip
        self.words = np.zeros(self.geometry.words(), np.int64)
        format_ring(self.words, self.geometry)
        self.ring = host_view(self.words)
        state_words = sc.make_state(spec, self.geometry, step_deadline_s=1.0)
        set_up(state_words, find(policy))
        self.state = sc.state_view(state_words)
        io_words = np.zeros(step_words(spec), np.int64)
        format_step(io_words, spec)
        self.io = step_view(io_words)
        self.table = table_view(make_table(spec))
        self.pipelined = pipelined
        self.launcher = (pipelined_view if pipelined else launcher_view)(
            make_launcher(EXECS * len(shapes(spec)))
        )
        self._policy = COPY.module(f"scheduler.policies.{SHIPPED[policy]}").POLICY.functions
        self.now = 1_000
        self.taken = 0
        self.fault = 0
        self.cache: dict[int, list[int]] = {}
        self.eos_after: dict[tuple[int, ...], int] = {}

    # --- the front end's side ---

    def submit(
        self, slot: int, prompt: list[int], max_tokens: int, *, command: int = SUBMIT, doorbell: bool = True,
        **words: int,
    ) -> int:  # fmt: skip
        """Submit as DESIGN's table orders it; keyword arguments are descriptor words (``Q_…``)."""
        incarnation = req_incarnation(int(self.ring.req[slot])) + 1
        start = slot * self.share
        self.ring.tokens[start : start + len(prompt)] = prompt
        descriptor = self.ring.descriptor[slot * at.DESCRIPTOR_WORDS :][: at.DESCRIPTOR_WORDS]
        descriptor[:] = 0
        descriptor[at.Q_PROMPT_START] = start
        descriptor[at.Q_PROMPT_LEN] = len(prompt)
        descriptor[at.Q_OUTPUT_START] = start + len(prompt)
        descriptor[at.Q_MAX_TOKENS] = max_tokens
        for name, value in words.items():
            descriptor[getattr(at, name)] = value
        self.ring.req[slot] = pack_req(incarnation, command)
        if doorbell:
            self.ring.doorbell[slot // 32] ^= 1 << (slot % 32)
        return incarnation

    def cancel(self, slot: int) -> None:
        self.ring.req[slot] = pack_req(req_incarnation(int(self.ring.req[slot])), CANCEL)

    def release(self, slot: int) -> None:
        self.ring.req[slot] = pack_req(req_incarnation(int(self.ring.req[slot])), RELEASE)

    def answer(self, slot: int) -> Answer:
        word = int(self.ring.ctl[2 * slot])
        start = int(self.ring.descriptor[slot * at.DESCRIPTOR_WORDS + at.Q_OUTPUT_START])
        tokens = self.ring.tokens[start : start + ctl_tokens(word)].tolist()
        return Answer(ctl_incarnation(word), State(ctl_state(word)), int(ctl_reason(word)), tokens)

    def records(self, slot: int) -> list[list[int]]:
        """Log-probabilities of a slot's tokens, packed pairs."""
        descriptor = self.ring.descriptor[slot * at.DESCRIPTOR_WORDS :][: at.DESCRIPTOR_WORDS]
        pairs, start = int(descriptor[at.Q_LOGPROBS]), int(descriptor[at.Q_LOGPROBS_START])
        words = self.ring.tokens[start : start + 2 * pairs * ctl_tokens(int(self.ring.ctl[2 * slot]))]
        return words.view(np.int64).reshape(-1, pairs).tolist()

    # --- scheduler and engine ---

    def turn(self) -> int:
        """One turn; a closed window is opened again, as the loops do."""
        self.now += 1_000
        buffers = self.ring, self.state, self.io, self.table, self.launcher
        verdict = int(_turn(*buffers, *self._policy, 0, 1, self.now))
        if verdict == sc.CLOSE_WINDOW:
            self.state.core[sc.K_WINDOW] = 0
            self.state.core[sc.K_WINDOWS] += 1
            open_window(self.launcher)
        return verdict

    def engine(self) -> bool:
        """Run the launched step, if there is one. Whether there was."""
        executable = peek(self.launcher, self.taken)
        if executable < 0:
            return False
        self.taken += 1
        graph = executable // EXECS
        decodes = self.table.kind[graph] == DECODE
        if decodes:
            for seat in self.io.decode_rows[: self.table.shape[graph]]:
                if seat >= 0:
                    self._feed(seat, int(self.io.seat_token[seat]), int(self.io.seat_position[seat]))
                    self._sample(seat)
        else:
            self._prefill(int(self.table.shape[graph]))
        if decodes and self.pipelined:
            self._hand_on(int(self.table.shape[graph]))
        else:
            self.io.control[FAULT] = self.fault
            self.io.control[DONE] = self.io.control[TICKET]
        retire(self.launcher, executable)
        return True

    def _hand_on(self, batch: int) -> None:
        io, ticket = self.io, int(self.io.control[TICKET])
        _ahead.hand_on(
            ticket, io.decode_rows, batch, io.seat_position, io.out_token, io.seat_token, io.seat_position,
            io.late_token, 0, 1,
        )  # fmt: skip
        io.out_token[:] = -7  # nobody may count on these
        _ahead.release_ahead(io.control, ticket, self.fault)

    def _prefill(self, shape: int) -> None:
        for run, seat in enumerate(self.io.run_seat):
            if seat < 0:
                continue
            first, last = int(self.io.run_start[run]), int(self.io.run_start[run + 1])
            assert last <= shape
            for index in range(first, last):
                assert self.io.prefill_seat[index] == seat
                self._feed(seat, int(self.io.prefill_token[index]), int(self.io.prefill_position[index]))
            if self.io.run_samples[run]:
                self._sample(seat)

    def _feed(self, seat: int, token: int, position: int) -> None:
        if position == 0:
            self.cache[seat] = []
        assert position == len(self.cache[seat]), "a token fed twice, or one left out"
        row = self.io.block_table[seat * self.spec.blocks_per_seat :]
        blocks = row[: position // self.spec.block_size + 1]
        assert len(set(blocks.tolist())) == len(blocks), "one block twice in a table"
        free = self.state.free_blocks[: int(self.state.core[sc.K_BLOCKS_FREE])]
        assert row[position // self.spec.block_size] not in free, "written to a free block"
        slot = int(self.state.seats[seat * sc.SEAT_WORDS + sc.SE_SLOT])
        assert slot != sc.NO_SLOT, "a step writes for a seat that nobody has"
        assert ctl_state(int(self.ring.ctl[2 * slot])) != State.DECODE_COMPLETED, "its slot was given back"
        self.cache[seat].append(token)

    def _sample(self, seat: int) -> None:
        history = tuple(self.cache[seat])
        self.io.out_token[seat] = self.eos_after.get(history, next_token(list(history)))
        pairs = int(self.io.sampling[seat * SAMPLING_WORDS + LOGPROBS])
        start = record_at(int(self.io.control[TICKET]), self.spec.seats, int(seat))
        self.io.out_logprobs[start : start + pairs] = pairs_of(list(history), pairs)

    def step(self, times: int = 1) -> None:
        """Turns with the engine's steps between them."""
        for _ in range(times):
            self.turn()
            self.engine()

    def run_until_quiet(self, limit: int = 20_000) -> None:
        """Step until nothing is live; fails after `limit` steps."""
        for _ in range(limit):
            verdict = self.turn()
            if not self.engine() and verdict == sc.IDLE and self.state.core[sc.K_WAITING] == 0:
                return
        raise AssertionError(f"still busy after {limit} steps: {self.state.core.tolist()}")

    def check_nothing_held(self) -> None:
        """All seats and blocks are free, each once."""
        core = self.state.core
        assert core[sc.K_SEATS_FREE] == self.spec.seats
        assert core[sc.K_BLOCKS_FREE] == self.spec.blocks
        assert sorted(self.state.free_seats.tolist()) == list(range(self.spec.seats))
        assert sorted(self.state.free_blocks.tolist()) == list(range(self.spec.blocks))
        assert core[sc.K_WAITING] == core[sc.K_SEATED] == 0


def expected(prompt: list[int], count: int) -> list[int]:
    """The formula engine's first `count` tokens after a prompt."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return history[len(prompt) :]
