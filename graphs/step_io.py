"""What passes between scheduler and engine: the fixed buffers of a step.

One int64 buffer (`ring.sections`) that never moves while an engine lives, since captured
graphs hold its address. The scheduler writes a step's inputs, launches a graph, and learns
from `DONE` that the outputs are there; nothing else passes between the two.

Rows and seats: a request in service holds a *seat* (0 … seats-1), which names its block
table, sampling parameters, next token and position. A decode graph of batch ``B`` works on
the seats listed in ``decode_rows[:B]`` (-1: padding). A prefill graph of ``T`` tokens works
on up to `prefill_sequences` runs of tokens packed one after the other; a run may be a chunk
that begins anywhere in its prompt, the cache holding what came before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ring.jit import njit
from ring.layout import MAX_LOGPROBS
from ring.sections import Section, check_buffer, format_buffer, layout, section

STEP_MAGIC = 0x424C4E4B_53544550  # "BLNKSTEP"
STEP_VERSION = 3

# sections, in their order in the buffer
(CONTROL, SEAT_TOKEN, SEAT_POSITION, SAMPLING, BLOCK_TABLE, DECODE_ROWS, PREFILL_TOKEN,
 PREFILL_POSITION, PREFILL_SEAT, RUN_SEAT, RUN_START, RUN_SAMPLES, OUT_TOKEN,
 OUT_LOGPROBS, LATE_TOKEN) = range(15)  # fmt: skip

# words of CONTROL. TICKET is the scheduler's (see `graphs.ahead` for when it is not); the others are
# the engine's, on a line of their own.
TICKET = 0  # number of the step being launched; 1, 2, 3, …
DONE = 8  # released by the last node of a graph: the TICKET it was launched with
FAULT = 9  # engine's error code of the step, 0 for none; written before DONE
LATE_FAULT = 10  # and 11: the same of two decode steps in a row, for a scheduler that looks late (`late_at`)

# words of a seat in SAMPLING
(TEMPERATURE_MICRO, TOP_P_MICRO, TOP_K, SEED, SUPPRESS_EOS, LOGPROBS) = range(6)
SAMPLING_WORDS = 8
RECORD_WORDS = 24  # packed pairs of a seat in OUT_LOGPROBS: `LOGPROBS` of them are written

assert RECORD_WORDS > MAX_LOGPROBS


@dataclass(frozen=True)
class EngineSpec:
    """The shapes an engine declares; fixed for its life.

    Attributes
    ----------
    seats : int
        Requests in service at once (the largest decode batch).
    decode_batches, prefill_tokens : tuple of int
        The grid: batches and token counts a graph exists for, ascending. The last decode
        batch equals `seats`.
    prefill_sequences : int
        Most runs packed into one prefill.
    block_size, blocks, blocks_per_seat : int
        Tokens a KV block, blocks in the cache, longest block table.
    max_model_len : int
        Most tokens (prompt and answer) of a request.
    vocab_size : int
        Token ids are 0 … vocab_size-1.
    eos_ids : tuple of int
        Ids that end an answer unless the request ignores them.
    """

    seats: int
    decode_batches: tuple[int, ...]
    prefill_tokens: tuple[int, ...]
    prefill_sequences: int
    block_size: int
    blocks: int
    blocks_per_seat: int
    max_model_len: int
    vocab_size: int
    eos_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.seats < 1 or not self.decode_batches or self.decode_batches[-1] != self.seats:
            raise ValueError(f"the largest decode batch {self.decode_batches} must equal seats {self.seats}")
        for name in ("decode_batches", "prefill_tokens"):
            grid = getattr(self, name)
            if not grid or list(grid) != sorted(set(grid)) or grid[0] < 1:
                raise ValueError(f"{name} must be positive and ascending, got {grid}")
        if self.blocks_per_seat * self.block_size < self.max_model_len:
            raise ValueError(
                f"a block table of {self.blocks_per_seat} blocks of {self.block_size} cannot hold "
                f"max_model_len {self.max_model_len}"
            )
        if self.blocks < self.blocks_per_seat:
            raise ValueError(
                f"{self.blocks} KV blocks cannot hold one request of {self.max_model_len} tokens "
                f"({self.blocks_per_seat} blocks): raise the KV memory or lower max_model_len"
            )


class StepIO(NamedTuple):
    """Views of the sections; all int64.

    `control` [16]; `seat_token`, `seat_position` [seats]: the next input token of a seat and
    its position (= tokens of the seat already in the cache). `sampling` [seats * 8].
    `block_table` [seats * blocks_per_seat], row-major. `decode_rows` [seats].
    `prefill_token`, `prefill_position`, `prefill_seat` [max prefill tokens]: seat -1 is padding.
    `run_seat` [sequences] (-1: unused), `run_start` [sequences + 1]: run ``k`` is tokens
    ``run_start[k]:run_start[k+1]``; `run_samples` [sequences]: 1 where the run ends its prompt, so
    its last token is sampled from. `out_token` [seats]: the token sampled for a seat.
    `out_logprobs` [2 * seats * 24]: its pairs (`ring.logprobs`), as many as the seat's
    sampling says, at `record_at`; a step leaves alone what the step before it wrote.
    `late_token` [2 * seats]: the tokens of two decode steps in a row (`late_at`), where the second
    may be over before the scheduler has looked at the first (`graphs.ahead`); unused elsewhere.
    """

    control: np.ndarray
    seat_token: np.ndarray
    seat_position: np.ndarray
    sampling: np.ndarray
    block_table: np.ndarray
    decode_rows: np.ndarray
    prefill_token: np.ndarray
    prefill_position: np.ndarray
    prefill_seat: np.ndarray
    run_seat: np.ndarray
    run_start: np.ndarray
    run_samples: np.ndarray
    out_token: np.ndarray
    out_logprobs: np.ndarray
    late_token: np.ndarray


def sections_of(spec: EngineSpec) -> list[Section]:
    """Sections of the step buffer of an engine."""
    tokens = spec.prefill_tokens[-1]
    return [
        Section("control", 16),
        Section("seat_token", spec.seats),
        Section("seat_position", spec.seats),
        Section("sampling", spec.seats, SAMPLING_WORDS),
        Section("block_table", spec.seats, spec.blocks_per_seat),
        Section("decode_rows", spec.seats),
        Section("prefill_token", tokens),
        Section("prefill_position", tokens),
        Section("prefill_seat", tokens),
        Section("run_seat", spec.prefill_sequences),
        Section("run_start", spec.prefill_sequences + 1),
        Section("run_samples", spec.prefill_sequences),
        Section("out_token", spec.seats),
        Section("out_logprobs", 2 * spec.seats, RECORD_WORDS),
        Section("late_token", 2 * spec.seats),
    ]


def step_words(spec: EngineSpec) -> int:
    """Size of the step buffer, in int64 words."""
    return layout(sections_of(spec))[1]


def format_step(words: np.ndarray, spec: EngineSpec) -> None:
    """Format zeroed host memory as an empty step buffer (rows and runs unused)."""
    format_buffer(words, STEP_MAGIC, STEP_VERSION, sections_of(spec))
    io = step_view(words)
    io.decode_rows[:] = -1
    io.prefill_seat[:] = -1
    io.run_seat[:] = -1


def check_step(words: np.ndarray) -> None:
    """Raise `ring.sections.BufferError` unless `words` is a step buffer."""
    check_buffer(words, STEP_MAGIC, STEP_VERSION, "step buffer")


@njit
def step_view(words):
    """Named views of a step buffer (host array, or device array inside a kernel)."""
    return StepIO(
        section(words, CONTROL),
        section(words, SEAT_TOKEN),
        section(words, SEAT_POSITION),
        section(words, SAMPLING),
        section(words, BLOCK_TABLE),
        section(words, DECODE_ROWS),
        section(words, PREFILL_TOKEN),
        section(words, PREFILL_POSITION),
        section(words, PREFILL_SEAT),
        section(words, RUN_SEAT),
        section(words, RUN_START),
        section(words, RUN_SAMPLES),
        section(words, OUT_TOKEN),
        section(words, OUT_LOGPROBS),
        section(words, LATE_TOKEN),
    )


@njit
def record_at(ticket, seats, seat):
    """First word, in OUT_LOGPROBS, of a seat's pairs of the step `ticket`.

    Two steps in a row use two halves: the scheduler takes one's pairs to the ring beside the next.
    """
    return ((ticket & 1) * seats + seat) * RECORD_WORDS


@njit
def late_at(ticket, seats, seat):
    """Word, in LATE_TOKEN, of a seat's token of the decode step `ticket`: one half for odd steps."""
    return (ticket & 1) * seats + seat
