"""Driving a CUDA engine's steps by hand, as a scheduler would: for its tests with and without a GPU."""

from __future__ import annotations

import itertools

import numpy as np

from graphs.grid import DECODE, PREFILL
from graphs.step_io import (
    DONE,
    FAULT,
    SAMPLING_WORDS,
    TICKET,
    format_step,
    record_at,
    step_view,
    step_words,
)

OFF = 1_000_000
GREEDY = (0, OFF, 0, 0, 0)


class Driver:
    """Seats, blocks and steps of one engine.

    Parameters
    ----------
    engine : CudaEngine
    run : callable
        ``run(kind, shape)`` executes a step and returns when it has ended.
    """

    def __init__(self, engine, run) -> None:
        self.engine, self._run = engine, run
        self.words = np.zeros(step_words(engine.spec), np.int64)
        format_step(self.words, engine.spec)
        self.io = step_view(self.words)
        self._free = list(np.random.default_rng(11).permutation(engine.spec.blocks))
        self._tickets = itertools.count(1)

    def seat(self, seat: int, sampling=GREEDY) -> None:
        """Give a seat a whole block table, of scattered blocks, and its sampling parameters."""
        per_seat = self.engine.spec.blocks_per_seat
        self.io.block_table[seat * per_seat : (seat + 1) * per_seat] = [
            self._free.pop() for _ in range(per_seat)
        ]
        self.io.sampling[seat * SAMPLING_WORDS : seat * SAMPLING_WORDS + len(sampling)] = sampling

    def prefill(self, runs: list[tuple[int, list[int], int, bool]], shape: int | None = None) -> np.ndarray:
        """Run ``(seat, tokens, first position, samples)`` packed; logits of each, float32[runs, vocab]."""
        io = self.io
        io.prefill_seat[:], io.run_seat[:] = -1, -1
        at = 0
        for k, (seat, tokens, first, samples) in enumerate(runs):
            after = at + len(tokens)
            io.prefill_token[at:after], io.prefill_seat[at:after] = tokens, seat
            io.prefill_position[at:after] = np.arange(first, first + len(tokens))
            io.run_seat[k], io.run_start[k], io.run_start[k + 1], io.run_samples[k] = seat, at, after, samples
            at = after
        self._step(PREFILL, shape or next(size for size in self.engine.spec.prefill_tokens if size >= at))
        return self.engine.activations.logits.copy_to_host()[: len(runs)]

    def decode(self, rows: list[tuple[int, int, int]], shape: int | None = None) -> np.ndarray:
        """A step of ``(seat, token, position)`` (seat -1: padding); logits, float32[rows, vocab]."""
        io = self.io
        io.decode_rows[:] = -1
        for k, (seat, token, position) in enumerate(rows):
            io.decode_rows[k] = seat
            if seat >= 0:
                io.seat_token[seat], io.seat_position[seat] = token, position
        self._step(
            DECODE, shape or next(size for size in self.engine.spec.decode_batches if size >= len(rows))
        )
        return self.engine.activations.logits.copy_to_host()[: len(rows)]

    def token(self, seat: int) -> int:
        """What the last step sampled for a seat."""
        return int(self.io.out_token[seat])

    def record(self, seat: int, pairs: int) -> np.ndarray:
        """The pairs that the last step wrote for a seat, int64[pairs]."""
        start = record_at(int(self.io.control[TICKET]), self.engine.spec.seats, seat)
        return self.io.out_logprobs[start : start + pairs]

    @property
    def fault(self) -> int:
        """Fault word of the last step."""
        return int(self.io.control[FAULT])

    def _step(self, kind: int, shape: int) -> None:
        self.io.control[TICKET] = next(self._tickets)
        if self.engine.host_io is None:
            self.engine.io.copy_to_device(self.words)
        else:
            self.engine.host_io[:] = self.words
        self._run(kind, shape)
        after = self.engine.io.copy_to_host() if self.engine.host_io is None else self.engine.host_io
        self.words[:] = after
        assert self.io.control[DONE] == self.io.control[TICKET], "the step did not release DONE"
