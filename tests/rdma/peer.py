"""A scheduler in a few lines of plain Python: the other side of the slot protocol.

It follows the protocol's table to the letter and answers a request with a sequence that
tells the request, the incarnation and the position, so a test sees any token that is
missed, repeated, reordered or somebody else's.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ring import layout as at
from ring.memory import RingMemory
from ring.states import DECODE_COMPLETED, DECODE_PROCESSING, PREFILL_PENDING, Reason
from ring.words import (
    CANCEL,
    SLOTS_PER_DOORBELL,
    SUBMIT,
    ctl_incarnation,
    next_incarnation,
    pack_ctl,
    pack_log,
    req_command,
    req_incarnation,
)


def answer_token(prompt: np.ndarray, position: int, vocab_size: int) -> int:
    """Token `position` of the scripted answer to `prompt`."""
    return int(int(prompt.astype(np.int64).sum()) * 31 + position * 7 + 1) % vocab_size


def answer_pairs(prompt: np.ndarray, position: int, pairs: int) -> list[int]:
    """Packed pairs of token `position` of the scripted answer to `prompt`; surprises are not floats here."""
    first = int(prompt.astype(np.int64).sum()) * 17 + position * 101
    return [(first + 3 * k) << 32 | (first + k) for k in range(pairs)]


@dataclass
class Live:
    """A claimed request."""

    slot: int
    incarnation: int
    prompt: np.ndarray
    output_start: int
    max_tokens: int
    pairs: int
    records_start: int
    done: int = 0


class ScriptedScheduler:
    """Claims, answers and ends requests; `actions` gives way after every shared word written."""

    def __init__(self, memory: RingMemory, *, stop_after: int = 1 << 30, log_ends_at: int = 1 << 30) -> None:
        self.memory = memory
        self.ring = memory.view
        self.live: dict[int, Live] = {}
        self.ended: dict[tuple[int, int], tuple[int, Reason]] = {}
        self.claims = 0
        self.violations: list[str] = []
        self._stop_after = stop_after
        self._log_ends_at = log_ends_at
        self._share = memory.geometry.slots_per_front_end
        self._going = self.actions()

    def turn(self) -> None:
        """One whole turn."""
        for _ in self.one_turn():
            pass

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()

    def actions(self) -> Iterator[None]:
        """Turns without end, a shared word at a time."""
        while True:
            yield from self.one_turn()
            yield

    def go_on(self, words: int) -> None:
        """Write about so many shared words, from wherever the last call stopped."""
        for _ in range(words):
            next(self._going)

    # --- one turn --------------------------------------------------------------------------

    def one_turn(self) -> Iterator[None]:
        yield from self.watch_fences()
        for slot in self.rung():
            yield from self.claim(slot)
        for live in list(self.live.values()):
            yield from self.advance(live)
        self.ring.status[at.S_HEARTBEAT] += 1

    def rung(self) -> list[int]:
        """Slots whose doorbell bit differs from the lowest bit of their incarnation."""
        bells = (self.ring.doorbell[:, None] >> np.arange(SLOTS_PER_DOORBELL)) & 1
        seen = (self.ring.ctl[:: at.CTL_WORDS] >> 32) & 1
        return np.flatnonzero(bells.ravel() != seen).tolist()

    def claim(self, slot: int) -> Iterator[None]:
        word, request = int(self.ring.ctl[slot * at.CTL_WORDS]), int(self.ring.req[slot])
        incarnation = req_incarnation(request)
        if slot in self.live or incarnation != next_incarnation(ctl_incarnation(word)):
            return
        if req_command(request) not in (SUBMIT, CANCEL):
            return
        self._publish(slot, incarnation, 0, Reason.NONE, PREFILL_PENDING)
        row = self.ring.descriptor[slot * at.DESCRIPTOR_WORDS : (slot + 1) * at.DESCRIPTOR_WORDS]
        start, length = int(row[at.Q_PROMPT_START]), int(row[at.Q_PROMPT_LEN])
        self._check_extent(slot, "prompt", start, length)
        output, max_tokens = int(row[at.Q_OUTPUT_START]), int(row[at.Q_MAX_TOKENS])
        self._check_extent(slot, "answer", output, max_tokens)
        pairs, records = int(row[at.Q_LOGPROBS]), int(row[at.Q_LOGPROBS_START])
        if pairs:
            self._check_extent(slot, "log-probabilities", records, 2 * pairs * max_tokens)
        prompt = self.ring.tokens[start : start + length].copy()
        self.live[slot] = Live(slot, incarnation, prompt, output, max_tokens, pairs, records)
        self.claims += 1
        yield

    def advance(self, live: Live) -> Iterator[None]:
        """One token for a request, or its end."""
        if self.live.get(live.slot) is not live:
            return
        request = int(self.ring.req[live.slot])
        if req_command(request) == CANCEL and req_incarnation(request) == live.incarnation:
            yield from self.end(live, Reason.CANCELLED)
            return
        token = answer_token(live.prompt, live.done, int(self.ring.info[at.I_VOCAB_SIZE]))
        self.ring.tokens[live.output_start + live.done] = token
        yield
        for k, word in enumerate(answer_pairs(live.prompt, live.done, live.pairs)):
            place = live.records_start + 2 * (live.pairs * live.done + k)
            self.ring.tokens[place : place + 2] = word & 0xFFFFFFFF, word >> 32
            yield
        yield from self._append_log(live, token)
        live.done += 1
        if live.done == live.max_tokens:
            yield from self.end(live, Reason.LENGTH)
        elif live.done == self._stop_after:
            yield from self.end(live, Reason.STOP)
        else:
            self._publish(live.slot, live.incarnation, live.done, Reason.NONE, DECODE_PROCESSING)
            yield

    def end(self, live: Live, reason: Reason) -> Iterator[None]:
        del self.live[live.slot]
        self.ended[live.slot, live.incarnation] = (live.done, reason)
        self._publish(live.slot, live.incarnation, live.done, reason, DECODE_COMPLETED)
        yield

    def watch_fences(self) -> Iterator[None]:
        for front_end in range(self.memory.geometry.front_ends):
            fence = int(self.ring.fe_fence[front_end * at.FE_WORDS + at.F_FENCE])
            drained = front_end * at.FE_WORDS + at.D_DRAINED
            if fence <= int(self.ring.fe_sched[drained]):
                continue
            for slot in range(front_end * self._share, (front_end + 1) * self._share):
                yield from self.claim(slot)  # submitted, but its doorbell never rang
                if slot in self.live:
                    yield from self.end(self.live[slot], Reason.ABORTED)
            self.ring.fe_sched[drained] = fence
            yield

    # --- shared words ----------------------------------------------------------------------

    def _check_extent(self, slot: int, what: str, start: int, length: int) -> None:
        share = self.memory.geometry.arena_share
        low = slot // self._share * share
        if length < 1 or start < low or start + length > low + share:
            self.violations.append(f"slot {slot}: {what} of {length} at {start}, share from {low}")

    def _append_log(self, live: Live, token: int) -> Iterator[None]:
        front_end, entries = live.slot // self._share, self.memory.geometry.log_entries
        head_at = front_end * at.FE_WORDS + at.D_LOG_HEAD
        if live.done >= self._log_ends_at:
            return
        head = int(self.ring.fe_sched[head_at])
        self.ring.log[front_end * entries + head % entries] = pack_log(live.slot, live.incarnation, token)
        yield
        self.ring.fe_sched[head_at] = head + 1
        yield

    def _publish(self, slot: int, incarnation: int, tokens: int, reason: Reason, state: int) -> None:
        self.ring.ctl[slot * at.CTL_WORDS] = pack_ctl(incarnation, tokens, int(reason), state)


class AnswerBook:
    """Checks a stream of events against the scripted answers."""

    def __init__(self, vocab_size: int) -> None:
        self.expected: dict = {}
        self.pairs: dict = {}
        self.got: dict = {}
        self.final: dict = {}
        self._in_use: set[int] = set()
        self._vocab_size = vocab_size

    def submitted(self, handle, prompt: np.ndarray, logprobs: int | None = None) -> None:
        assert handle not in self.expected, f"{handle} was given twice"
        assert handle.slot not in self._in_use, f"slot {handle.slot} was given while in use"
        self._in_use.add(handle.slot)
        self.expected[handle] = prompt
        self.pairs[handle] = 0 if logprobs is None else 1 + logprobs
        self.got[handle] = []

    def take(self, events) -> None:
        for event in events:
            assert event.handle in self.expected, f"an event of {event.handle}, which was never submitted"
            assert event.handle not in self.final, f"{event.handle} goes on after its end"
            assert event.tokens.dtype == np.int32
            answer = self.got[event.handle]
            prompt = self.expected[event.handle]
            self._check_records(event, prompt, len(answer))
            answer.extend(event.tokens.tolist())
            correct = [answer_token(prompt, k, self._vocab_size) for k in range(len(answer))]
            assert answer == correct, f"{event.handle}: {answer} instead of {correct}"
            assert event.usage == len(answer)
            if event.reason:
                self.final[event.handle] = event.reason
                self._in_use.remove(event.handle.slot)

    def _check_records(self, event, prompt: np.ndarray, first: int) -> None:
        pairs = self.pairs[event.handle]
        if not pairs:
            assert event.records is None
            return
        assert event.records.shape == (len(event.tokens), pairs)
        expected = [answer_pairs(prompt, first + k, pairs) for k in range(len(event.tokens))]
        assert event.records.tolist() == expected, f"{event.handle}: not its log-probabilities"

    def check_ends(self, scheduler: ScriptedScheduler) -> None:
        """Every request ended as the scheduler ended it, with every token it gave."""
        assert not self.open
        for handle, reason in self.final.items():
            assert scheduler.ended[handle] == (len(self.got[handle]), reason)

    @property
    def open(self) -> int:
        return len(self.expected) - len(self.final)


_names = itertools.count()


def ring_name(prefix: str = "rdma") -> str:
    """A name no other test uses."""
    return f"{prefix}-{os.getpid()}-{next(_names)}"
