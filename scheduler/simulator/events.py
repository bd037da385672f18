"""The memory of a simulation: what arrives, what came of it, who sits where."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# words of COUNTS
(
    N_CLOCK,
    N_TAKEN,
    N_NEXT,
    N_DONE,
    N_FREE_SLOTS,
    N_STEPS,
    N_DECODES,
    N_PREFILLS,
    N_BUSY_NS,
    N_PREFILL_NS,
    N_GAP_NS,
    N_ROWS_NS,
    N_SERIES,
    N_ERROR,
    N_THINKING,
    N_TURNS,
    N_PREEMPTED,
    N_BUCKET,
) = range(18)
COUNT_WORDS = 32

# why a simulation ended early (N_ERROR)
OK, STUCK, SCHEDULER_FAULT, OUT_OF_STEPS = 0, 1, 2, 3

# inter-token gaps are counted in buckets, eight to a doubling, from a microsecond on
BUCKETS_PER_DOUBLING = 8
BUCKETS = 45 * BUCKETS_PER_DOUBLING

SERIES_WORDS = 6  # time, kind of the step, rows or runs, tokens, waiting, free blocks


class Events(NamedTuple):
    """Arrays of a simulation of ``n`` requests; int64, times in nanoseconds.

    Given: `arrive`, `prompt`, `output`, `priority`, `tenant`, `deadline` (a duration, 0: none) [n].
    In a closed loop `arrive` of all but the first `users` is the think time before them.
    Found: `seated` (first seat), `first` (first token), `done`, `reason`, `preempted` (times) [n];
    -1 where it never happened. `gaps` [BUCKETS]: time between tokens of an answer, `edges`
    [BUCKETS + 1]: where its buckets begin.
    `series` [capacity * SERIES_WORDS]: every `every`-th step. Own: `request_of_slot`,
    `last_token`, `free_slots` [slots], `slot_of_seat` [seats], `thinking` [2 * users]: a heap of
    (time, request). `options`: users, every, seed, most steps, placement of extents.
    """

    arrive: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    priority: np.ndarray
    tenant: np.ndarray
    deadline: np.ndarray
    seated: np.ndarray
    first: np.ndarray
    done: np.ndarray
    reason: np.ndarray
    preempted: np.ndarray
    gaps: np.ndarray
    edges: np.ndarray
    series: np.ndarray
    request_of_slot: np.ndarray
    last_token: np.ndarray
    free_slots: np.ndarray
    slot_of_seat: np.ndarray
    thinking: np.ndarray
    options: np.ndarray
    counts: np.ndarray


(O_USERS, O_EVERY, O_SEED, O_MOST_STEPS, O_EXTENT) = range(5)
OPTION_WORDS = 8


class StepTimes(NamedTuple):
    """How long steps take: tables over two axes, interpolated; float64, nanoseconds.

    `decode` [batches * contexts] over `decode_batch` (rows of the graph) and `decode_context`
    (tokens of all its rows in the cache). `prefill` [sizes * depths] over `prefill_tokens` (of the
    graph) and `prefill_depth` (mean position of its tokens). `gap` [quantiles]: from the end of
    one step to the start of the next, drawn evenly.
    """

    decode_batch: np.ndarray
    decode_context: np.ndarray
    decode: np.ndarray
    prefill_tokens: np.ndarray
    prefill_depth: np.ndarray
    prefill: np.ndarray
    gap: np.ndarray
