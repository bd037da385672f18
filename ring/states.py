"""States of a slot, reasons to finish, and the one table of legal edges with their owners.

Code, diagram, checker and run-time checks all read `EDGES`.
"""

from __future__ import annotations

from enum import IntEnum

from ring.jit import njit
from ring.words import RELEASE, ctl_incarnation, ctl_state, req_command, req_incarnation


class State(IntEnum):
    """State of a slot (paper, section 4; `ctl` word, bits 0–3)."""

    EMPTY = 0
    PREFILL_PENDING = 1
    PREFILL_PROCESSING = 2
    DECODE_PROCESSING = 3
    DECODE_PAUSED = 4
    DECODE_COMPLETED = 5


class Reason(IntEnum):
    """Why a request ended (`ctl` word, bits 4–7)."""

    NONE = 0
    STOP = 1  # an end-of-sequence or stop token
    LENGTH = 2  # max_tokens, or the context is full
    CANCELLED = 3
    DEADLINE = 4
    ERROR = 5  # the engine failed while the request was in service
    REJECTED = 6  # the descriptor makes no sense or can never be served
    ABORTED = 7  # its front end died
    SHUTDOWN = 8


# plain integers for compiled code
EMPTY, PREFILL_PENDING, PREFILL_PROCESSING, DECODE_PROCESSING, DECODE_PAUSED, DECODE_COMPLETED = (
    int(state) for state in State
)
(
    R_NONE,
    R_STOP,
    R_LENGTH,
    R_CANCELLED,
    R_DEADLINE,
    R_ERROR,
    R_REJECTED,
    R_ABORTED,
    R_SHUTDOWN,
) = (int(reason) for reason in Reason)

SCHEDULER, FRONT_END = "scheduler", "front end"

# (from, to): (owner, why)
EDGES: dict[tuple[State, State], tuple[str, str]] = {
    (State.EMPTY, State.PREFILL_PENDING): (SCHEDULER, "claimed by CAS after a submission"),
    (State.PREFILL_PENDING, State.PREFILL_PROCESSING): (SCHEDULER, "admitted: seat and blocks given"),
    (State.PREFILL_PROCESSING, State.DECODE_PROCESSING): (SCHEDULER, "prompt done, first token out"),
    (State.DECODE_PROCESSING, State.DECODE_PAUSED): (SCHEDULER, "an inline prefill runs, or preempted"),
    (State.DECODE_PAUSED, State.DECODE_PROCESSING): (SCHEDULER, "the prefill is done"),
    (State.DECODE_PAUSED, State.PREFILL_PROCESSING): (SCHEDULER, "preempted and admitted again: recompute"),
    (State.PREFILL_PENDING, State.DECODE_COMPLETED): (SCHEDULER, "cancel, deadline, rejection, death"),
    (State.PREFILL_PROCESSING, State.DECODE_COMPLETED): (
        SCHEDULER,
        "one-token answer, cancel, deadline, error",
    ),
    (State.DECODE_PROCESSING, State.DECODE_COMPLETED): (SCHEDULER, "stop, length, cancel, deadline, error"),
    (State.DECODE_PAUSED, State.DECODE_COMPLETED): (SCHEDULER, "cancel, deadline, error"),
    (State.DECODE_COMPLETED, State.EMPTY): (FRONT_END, "released: req = RELEASE of the same incarnation"),
}

LIVE = (State.PREFILL_PENDING, State.PREFILL_PROCESSING, State.DECODE_PROCESSING, State.DECODE_PAUSED)

# legal[from * 8 + to], for compiled checks
_LEGAL = tuple((before, after) in EDGES for before in range(8) for after in range(8))


def is_legal(before: int, after: int) -> bool:
    """Whether the table has the edge `before` → `after`."""
    return _LEGAL[before * 8 + after]


@njit
def is_live(state):
    """Claimed and not yet completed."""
    return PREFILL_PENDING <= state <= DECODE_PAUSED


@njit
def slot_state(ctl_word, req_word):
    """State of a slot from its two words.

    EMPTY is never written after the first incarnation: a completed slot whose front end
    said RELEASE for the same incarnation *is* empty.
    """
    state = ctl_state(ctl_word)
    if (
        state == DECODE_COMPLETED
        and req_command(req_word) == RELEASE
        and req_incarnation(req_word) == ctl_incarnation(ctl_word)
    ):
        return EMPTY
    return state


def diagram() -> str:
    """The edges as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> EMPTY"]
    for (before, after), (owner, why) in EDGES.items():
        lines.append(f"    {before.name} --> {after.name}: {why} ({owner})")
    return "\n".join(lines)
