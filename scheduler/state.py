"""The scheduler's own memory: everything it must know to go on where another instance stopped.

One int64 buffer (`ring.sections`) that outlives every instance of the scheduler: a window's
end, a restart or a swap of the policy loads the same words again. Records are flat, a fixed
number of words each; the offsets below are their fields.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphs.grid import shapes
from graphs.step_io import EngineSpec
from ring.jit import njit, uncounted
from ring.layout import MAX_STOP_IDS, RingGeometry
from ring.sections import LINE, TABLE, Section, check_buffer, format_buffer, layout, section
from ring.words import SLOTS_PER_DOORBELL

STATE_MAGIC = 0x424C4E4B_53544154  # "BLNKSTAT"
STATE_VERSION = 5

# --- configuration: written by the host before the start ---
(G_SEATS, G_BLOCK_SIZE, G_BLOCKS, G_BLOCKS_PER_SEAT, G_MAX_MODEL_LEN, G_VOCAB_SIZE, G_PREFILL_TOKENS,
 G_PREFILL_RUNS, G_SLOTS_PER_FRONT_END, G_ARENA_SHARE, G_EOS_COUNT, G_STEP_DEADLINE_NS, G_POLL_SPINS,
 G_LAUNCH_TRIES, G_PLACEMENT, G_SPARE_BLOCKS) = range(16)  # fmt: skip
CONFIG_WORDS = 32

# --- core: one word each; lane 0 writes unless a comment says otherwise ---
(K_STEP, K_IN_FLIGHT, K_IN_FLIGHT_ROWS, K_LAUNCHED_AT, K_WINDOW, K_BOUNDARY, K_VERDICT, K_PLAN, K_GRAPH,
 K_NEXT_TICKET, K_WAITING, K_SEATS_FREE, K_BLOCKS_FREE, K_SEATED, K_DECODING, K_ROWS_STALE, K_TRY_ADMIT,
 K_NOW, K_STOP, K_ERROR, K_ERROR_ARG, K_RECORDS, K_LAUNCHES, K_WINDOWS, K_RETRIES, K_PREFILLS, K_DECODES,
 K_TOKENS, K_FINISHED, K_PREEMPTIONS, K_CLAIMS, K_LOOPS, K_ADMITTING, K_PARK,
 K_WATCHED, K_POLICY_ASKED, K_FAULT, K_DECODE_GRAPH,
 K_GOES_ON, K_COLLECTED, K_COLLECTED_ROWS, K_COLLECTED_STEP,
 K_QUIET, K_JUDGING, K_DISPLACES, K_AHEAD) = range(46)  # fmt: skip
# counters that lanes add to atomically, on lines of their own
assert K_AHEAD < 6 * LINE
K_CLAIMED = 6 * LINE  # claims without a ticket yet
K_DOOMED = 7 * LINE  # requests that a lane saw cancelled, late or orphaned
K_ENDED = 8 * LINE  # seats whose request ended in this step
K_STARVED = 9 * LINE  # seats that found no free block for their next token
K_DYING = 10 * LINE  # front ends declared dead and not drained
CORE_WORDS = 11 * LINE

NOTHING, DECODE_STEP, PREFILL_STEP = 0, 1, 2  # K_IN_FLIGHT, K_PLAN

# what a turn tells the loop around it
BUSY, IDLE, STEPPED, CLOSE_WINDOW, STOPPED, FAULTED, PARKED = 0, 1, 2, 3, 4, 5, 6

# errors (K_ERROR, status word S_ERROR)
NO_ERROR, ERROR_STEP_DEADLINE, ERROR_LAUNCH, ERROR_ENGINE = 0, 1, 2, 3

# --- a slot as the scheduler knows it ---
(SL_LIVE, SL_INCARNATION, SL_TICKET, SL_SEAT, SL_DEADLINE, SL_GENERATED, SL_DOOM, SL_WAIT_INDEX, SL_ARRIVED,
 SL_PROMPT_LEN, SL_MAX_TOKENS, SL_PRIORITY, SL_TENANT, SL_FRONT_END, SL_STATE,
 SL_SINCE) = range(16)  # fmt: skip
SLOT_WORDS = 16  # SL_SINCE: when it last began to wait, or last got a seat
NO_SEAT = -1
NEVER = (1 << 62) - 1  # a deadline that does not come

# --- a seat and the request on it ---
(SE_SLOT, SE_STATE, SE_W0, SE_INCARNATION, SE_PROMPT_START, SE_PROMPT_LEN, SE_OUTPUT_START, SE_MAX_TOKENS,
 SE_MIN_TOKENS, SE_IGNORE_EOS, SE_COMPUTED, SE_TARGET, SE_GENERATED, SE_BLOCKS, SE_DOOM, SE_REASON,
 SE_STARVED, SE_RUN, SE_TICKET, SE_FRONT_END, SE_OUT_SLOT, SE_OUT_W0, SE_OUT_TOKEN, SE_OUT_INDEX,
 SE_OUT_FRONT_END, SE_OUT_LOG, SE_LOGPROBS, SE_LOGPROBS_START, SE_OUT_LOGPROBS, SE_OUT_RECORD,
 SE_OUT_RECORD_TO, SE_STOP_COUNT, SE_STOP_0) = range(33)  # fmt: skip
SEAT_WORDS = 33 + MAX_STOP_IDS
NO_SLOT = -1

# --- a front end ---
FR_DYING, FR_DRAINED, FR_LIVE, FR_SEARCHED = 0, 1, 2, 3
FR_LOG_HEAD = 4  # entries of its token log given out; lanes add to it atomically
FR_LOG_PUBLISHED = 5
FRONT_END_WORDS = LINE

EOS_LIMIT = 16
LANES = 256  # the most lanes of one scheduler
OFFER_WORDS = 4  # what a lane found when all search, see `scheduler.admit`

# --- the policy in force, then the presets it can be swapped for ---
P_ACTIVE, P_PREEMPTIVE, P_MARGIN, P_ACCOUNTING, P_SERIAL, P_PRESETS = range(6)
P_NAME = 8  # NAME_WORDS: its name, packed
P_PARAMETERS = 16  # PARAMETERS: what it was set up with
P_MEMORY = 32  # MEMORY: what it remembers
P_ACCOUNTS = P_MEMORY + 128  # TENANTS: tokens generated for each tenant, while P_ACCOUNTING
NAME_WORDS, PARAMETERS, MEMORY, TENANTS = 6, 16, 128, 64
P_PRESET_0 = 256  # PRESETS records
PRESETS, PRESET_WORDS = 24, 32
PR_PREEMPTIVE, PR_MARGIN, PR_ACCOUNTING, PR_NAME, PR_PARAMETERS = 0, 1, 2, 8, 16  # words of a preset
POLICY_WORDS = P_PRESET_0 + PRESETS * PRESET_WORDS

# The hot sections come first: a step looks at them again and again, and a GPU keeps them in shared memory.
(CONFIG, CORE, EOS, PARITY, CLAIMED, SEATS, ROWS, FREE_SEATS, GRAPH_TURN, FRONT_ENDS, BEST, POLICY,
 SLOTS, WAITING, FREE_BLOCKS) = range(15)  # fmt: skip
FIRST_COLD = SLOTS


class SchedulerState(NamedTuple):
    """Views of the sections; all int64.

    `config`, `core`, `eos`: see the words above. `parity` [slots / 32]: what each doorbell
    word will look like while nothing is new. `claimed` [slots / 32]: bits of slots claimed
    in this turn. `slots` [slots * SLOT_WORDS], `seats` [seats * SEAT_WORDS]: records. `rows` [seats]:
    the seats of the decode batch, as the step buffer has them.
    `waiting` [slots]: slots without a seat, unordered, dense. `free_seats`, `free_blocks`:
    stacks. `graph_turn` [graphs]: launches of a graph. `front_ends` [front ends *
    FRONT_END_WORDS]. `best` [2 * LANES * OFFER_WORDS]: each lane's best candidate, then each one's
    victim. `policy` [POLICY_WORDS]: the policy in force with its parameters and memory, and the presets.
    `words`: the whole buffer; `hot`: where its hot sections are, the same array but on a GPU
    (`hot_words`). A policy's functions are called with both.
    """

    config: np.ndarray
    core: np.ndarray
    eos: np.ndarray
    parity: np.ndarray
    claimed: np.ndarray
    seats: np.ndarray
    rows: np.ndarray
    free_seats: np.ndarray
    graph_turn: np.ndarray
    front_ends: np.ndarray
    best: np.ndarray
    policy: np.ndarray
    slots: np.ndarray
    waiting: np.ndarray
    free_blocks: np.ndarray
    hot: np.ndarray
    words: np.ndarray


def sections_of(spec: EngineSpec, geometry: RingGeometry) -> list[Section]:
    """Sections of the state for an engine and a ring."""
    words = geometry.slots // SLOTS_PER_DOORBELL
    return [
        Section("config", CONFIG_WORDS),
        Section("core", CORE_WORDS),
        Section("eos", EOS_LIMIT),
        Section("parity", words),
        Section("claimed", words),
        Section("seats", spec.seats, SEAT_WORDS),
        Section("rows", spec.seats),
        Section("free_seats", spec.seats),
        Section("graph_turn", len(shapes(spec))),
        Section("front_ends", geometry.front_ends, FRONT_END_WORDS),
        Section("best", 2 * LANES, OFFER_WORDS),
        Section("policy", POLICY_WORDS),
        Section("slots", geometry.slots, SLOT_WORDS),
        Section("waiting", geometry.slots),
        Section("free_blocks", spec.blocks),
    ]


@uncounted
def hot_words(words):
    """Words from the buffer's start to the end of its hot sections; a copy of them is a buffer too."""
    return words[TABLE + 2 * FIRST_COLD]


def make_state(
    spec: EngineSpec,
    geometry: RingGeometry,
    *,
    placement: int = 0,
    step_deadline_s: float = 60.0,
    poll_spins: int = 0,
    launch_tries: int = 64,
) -> np.ndarray:
    """Words of a fresh state: no request known, all seats and blocks free.

    Parameters
    ----------
    step_deadline_s : float
        A step that takes longer is a fault. Must exceed the longest prefill.
    poll_spins : int
        Looks at the completion flag between two scans of the ring; 0: one.
    launch_tries : int
        Attempts to launch a graph before that is a fault.
    """
    if len(spec.eos_ids) > EOS_LIMIT:
        raise ValueError(f"{len(spec.eos_ids)} end-of-sequence ids; at most {EOS_LIMIT} are supported")
    sections = sections_of(spec, geometry)
    words = np.zeros(layout(sections)[1], np.int64)
    format_buffer(words, STATE_MAGIC, STATE_VERSION, sections)
    state = state_view(words)
    config = {
        G_SEATS: spec.seats,
        G_BLOCK_SIZE: spec.block_size,
        G_BLOCKS: spec.blocks,
        G_BLOCKS_PER_SEAT: spec.blocks_per_seat,
        G_MAX_MODEL_LEN: spec.max_model_len,
        G_VOCAB_SIZE: spec.vocab_size,
        G_PREFILL_TOKENS: spec.prefill_tokens[-1],
        G_PREFILL_RUNS: spec.prefill_sequences,
        G_SLOTS_PER_FRONT_END: geometry.slots_per_front_end,
        G_ARENA_SHARE: geometry.arena_share,
        G_EOS_COUNT: len(spec.eos_ids),
        G_STEP_DEADLINE_NS: int(step_deadline_s * 1e9),
        G_POLL_SPINS: poll_spins,
        G_LAUNCH_TRIES: launch_tries,
        G_PLACEMENT: placement,
    }
    for word, value in config.items():
        state.config[word] = value
    state.eos[: len(spec.eos_ids)] = spec.eos_ids
    reset_pools(state)
    return words


def check_state(words: np.ndarray) -> None:
    """Raise `ring.sections.BufferError` unless `words` is a scheduler state."""
    check_buffer(words, STATE_MAGIC, STATE_VERSION, "scheduler state")


@uncounted
def reset_pools(state):
    """All seats and blocks free, lowest on top of their stacks."""
    seats, blocks = state.config[G_SEATS], state.config[G_BLOCKS]
    for i in range(seats):
        state.free_seats[i] = seats - 1 - i
        state.seats[i * SEAT_WORDS + SE_SLOT] = NO_SLOT
        state.seats[i * SEAT_WORDS + SE_OUT_SLOT] = NO_SLOT
    for i in range(blocks):
        state.free_blocks[i] = blocks - 1 - i
    state.core[K_SEATS_FREE] = seats
    state.core[K_BLOCKS_FREE] = blocks
    state.core[K_SEATED] = 0
    state.core[K_DECODING] = 0
    state.core[K_ROWS_STALE] = 1
    state.core[K_TRY_ADMIT] = 1


@njit(inline="always")
def _view(hot, words):
    return SchedulerState(
        section(hot, CONFIG),
        section(hot, CORE),
        section(hot, EOS),
        section(hot, PARITY),
        section(hot, CLAIMED),
        section(hot, SEATS),
        section(hot, ROWS),
        section(hot, FREE_SEATS),
        section(hot, GRAPH_TURN),
        section(hot, FRONT_ENDS),
        section(hot, BEST),
        section(hot, POLICY),
        section(words, SLOTS),
        section(words, WAITING),
        section(words, FREE_BLOCKS),
        hot,
        words,
    )


@njit
def state_view(words):
    """Named views of a scheduler state."""
    return _view(words, words)


@njit
def split_view(hot, words):
    """`state_view` of a buffer whose hot sections are in `hot` for the time being."""
    return _view(hot, words)


@uncounted
def borrowed_view(hot, words):
    """`split_view` for `ring.jit.uncounted` functions, which hold no references."""
    return _view(hot, words)
