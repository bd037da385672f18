"""Named views of a ring, for host code and compiled code alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ring import layout as at
from ring.jit import njit
from ring.layout import RING_MAGIC, RING_VERSION, RingGeometry
from ring.sections import TABLE, check_buffer, format_buffer, section


class RingView(NamedTuple):
    """Sections of a ring as flat int64 arrays, and `tokens`, the arena as int32.

    Strides are those of `ring.layout`: record ``s`` of `ctl` is words
    ``[2 s, 2 s + 2)``, descriptor ``s`` words ``[32 s, 32 s + 32)``, log ``k`` words
    ``[k * log_entries, …)``.
    """

    info: np.ndarray
    status: np.ndarray
    command: np.ndarray
    fe_port: np.ndarray
    fe_fence: np.ndarray
    fe_sched: np.ndarray
    ctl: np.ndarray
    doorbell: np.ndarray
    req: np.ndarray
    descriptor: np.ndarray
    log: np.ndarray
    flight: np.ndarray
    tokens: np.ndarray


@njit
def ring_view(words, narrow):
    """Views of a ring.

    Parameters
    ----------
    words : int64[n]
        The ring's words.
    narrow : int32[2 n]
        The same memory as int32.
    """
    arena = 2 * words[TABLE + 2 * at.ARENA]
    size = section(words, at.INFO)[at.I_ARENA_TOKENS]
    return RingView(
        section(words, at.INFO),
        section(words, at.STATUS),
        section(words, at.COMMAND),
        section(words, at.FE_PORT),
        section(words, at.FE_FENCE),
        section(words, at.FE_SCHED),
        section(words, at.CTL),
        section(words, at.DOORBELL),
        section(words, at.REQ),
        section(words, at.DESCRIPTOR),
        section(words, at.LOG),
        section(words, at.FLIGHT),
        narrow[arena : arena + size],
    )


def format_ring(words: np.ndarray, geometry: RingGeometry) -> None:
    """Format zeroed memory as an empty ring: all slots EMPTY at incarnation 0."""
    sections = geometry.sections()
    info = np.zeros(sections[at.INFO].words, np.int64)
    info[at.I_SLOTS] = geometry.slots
    info[at.I_FRONT_ENDS] = geometry.front_ends
    info[at.I_ARENA_TOKENS] = geometry.arena_tokens
    info[at.I_LOG_ENTRIES] = geometry.log_entries
    info[at.I_FLIGHT_ENTRIES] = geometry.flight_entries
    format_buffer(words, RING_MAGIC, RING_VERSION, sections)
    section(words, at.INFO)[:] = info


def check_ring(words: np.ndarray) -> RingGeometry:
    """Geometry of a ring; `ring.sections.BufferError` unless `words` is a whole one."""
    check_buffer(words, RING_MAGIC, RING_VERSION, "ring")
    info = section(words, at.INFO)
    return RingGeometry(
        slots=int(info[at.I_SLOTS]),
        front_ends=int(info[at.I_FRONT_ENDS]),
        arena_tokens=int(info[at.I_ARENA_TOKENS]),
        log_entries=int(info[at.I_LOG_ENTRIES]),
        flight_entries=int(info[at.I_FLIGHT_ENTRIES]),
    )


def host_view(words: np.ndarray) -> RingView:
    """`ring_view` of host memory."""
    return ring_view(words, words.view(np.int32))
