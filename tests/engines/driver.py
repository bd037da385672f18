"""Driving an engine by hand: what the scheduler does, one step at a time, in plain Python."""

from __future__ import annotations

import numpy as np

from blink_numba.engines.cpu import CpuEngine
from graphs.grid import DECODE, PREFILL
from graphs.step_io import (
    DONE,
    SAMPLING_WORDS,
    SEED,
    SUPPRESS_EOS,
    TEMPERATURE_MICRO,
    TICKET,
    TOP_K,
    TOP_P_MICRO,
    format_step,
    step_view,
    step_words,
)


class Driver:
    """A step buffer over an engine, its KV blocks dealt out to seats in a shuffled order."""

    def __init__(self, engine: CpuEngine, *, blocks_per_seat: int | None = None) -> None:
        engine.stop()
        self.engine, self.spec = engine, engine.spec
        self.words = np.zeros(step_words(self.spec), np.int64)
        format_step(self.words, self.spec)
        self.io = step_view(self.words)
        self.io.sampling.reshape(-1, SAMPLING_WORDS)[:, TOP_P_MICRO] = 1_000_000
        blocks = blocks_per_seat or self.spec.blocks // self.spec.seats
        order = np.random.default_rng(7).permutation(self.spec.blocks)[: blocks * self.spec.seats]
        tables = self.io.block_table.reshape(self.spec.seats, -1)
        tables[:, :blocks] = order.reshape(self.spec.seats, blocks)

    def sample_with(self, seat, *, temperature=0.0, top_p=1.0, top_k=0, seed=0, suppress_eos=False) -> None:
        """Set a seat's sampling parameters."""
        words = self.io.sampling[seat * SAMPLING_WORDS :]
        words[TEMPERATURE_MICRO], words[TOP_P_MICRO] = round(temperature * 1e6), round(top_p * 1e6)
        words[TOP_K], words[SEED], words[SUPPRESS_EOS] = top_k, seed, int(suppress_eos)

    def prefill(self, runs: dict, *, starts: dict[int, int] | None = None, ends: bool = True) -> None:
        """One prefill step: for each seat its tokens, from position `starts` on; `ends`: sample from them."""
        io, at = self.io, 0
        io.prefill_seat[:] = -1
        io.run_seat[:] = -1
        for k, (seat, tokens) in enumerate(runs.items()):
            first, count = (starts or {}).get(seat, 0), len(tokens)
            io.prefill_token[at : at + count] = tokens
            io.prefill_position[at : at + count] = np.arange(first, first + count)
            io.prefill_seat[at : at + count] = seat
            io.run_seat[k], io.run_samples[k] = seat, int(ends)
            io.run_start[k : k + 2] = at, at + count
            at += count
            io.seat_position[seat] = first + count
        self.step(PREFILL, next(size for size in self.spec.prefill_tokens if size >= at))
        if ends:
            for seat in runs:
                io.seat_token[seat] = io.out_token[seat]

    def decode(self, seats: list[int]) -> list[int]:
        """One decode step; the seats' tokens."""
        io = self.io
        io.decode_rows[:] = -1
        io.decode_rows[: len(seats)] = seats
        self.step(DECODE, next(batch for batch in self.spec.decode_batches if batch >= len(seats)))
        for seat in {seat for seat in seats if seat >= 0}:
            io.seat_token[seat] = io.out_token[seat]
            io.seat_position[seat] += 1
        return [int(io.out_token[seat]) for seat in seats if seat >= 0]

    def step(self, kind: int, shape: int) -> None:
        io = self.io
        io.control[TICKET] += 1
        assert self.engine.run_step(self.words, kind, shape) == 0
        assert io.control[DONE] == io.control[TICKET]

    def logits(self, count: int) -> np.ndarray:
        return self.engine.sampled_logits(count).copy()
