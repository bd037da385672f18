"""The layout: sections in order, on lines of their own, and a header a peer can trust."""

from __future__ import annotations

import numpy as np
import pytest

from ring import layout as at
from ring.layout import RingGeometry
from ring.sections import LINE, TABLE, BufferError, layout
from ring.views import check_ring, format_ring, host_view

GEOMETRY = RingGeometry(slots=128, front_ends=2, arena_tokens=1001, log_entries=64, flight_entries=32)


@pytest.fixture
def words() -> np.ndarray:
    memory = np.zeros(GEOMETRY.words(), np.int64)
    format_ring(memory, GEOMETRY)
    return memory


def test_sections_start_on_cache_lines_and_do_not_overlap() -> None:
    starts, size = layout(GEOMETRY.sections())
    end = 0
    for start, section in zip(starts, GEOMETRY.sections(), strict=True):
        assert start % LINE == 0
        assert start >= end
        end = start + section.words
    assert end <= size


def test_words_of_front_ends_and_scheduler_lie_on_different_lines() -> None:
    starts, _ = layout(GEOMETRY.sections())
    for section in (at.FE_PORT, at.FE_FENCE, at.FE_SCHED):
        assert GEOMETRY.sections()[section].width == LINE
    # one read brings a front end's scheduler words and the control records
    assert starts[at.CTL] == starts[at.FE_SCHED] + GEOMETRY.front_ends * at.FE_WORDS


def test_all_4096_control_records_are_64_kib() -> None:
    assert RingGeometry().sections()[at.CTL].words * 8 == 64 * 1024


def test_geometry_is_read_back(words: np.ndarray) -> None:
    assert check_ring(words) == GEOMETRY


def test_views_share_the_memory(words: np.ndarray) -> None:
    view = host_view(words)
    view.tokens[-1] = 77
    view.req[5] = 9
    again = host_view(words)
    assert again.tokens[-1] == 77
    assert again.req[5] == 9
    assert view.tokens.shape == (GEOMETRY.arena_tokens,)
    assert view.tokens.dtype == np.int32


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [(0, 0, "magic"), (1, 99, "version"), (2, 1 << 40, "cut short")],
)
def test_a_wrong_head_is_named(words: np.ndarray, word: int, value: int, message: str) -> None:
    words[word] = value
    with pytest.raises(BufferError, match=message):
        check_ring(words)


def test_a_table_is_written_before_the_magic() -> None:
    memory = np.zeros(GEOMETRY.words() - 1, np.int64)
    with pytest.raises(BufferError, match="sections need"):
        format_ring(memory, GEOMETRY)
    assert memory[0] == 0
    assert memory[TABLE] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": 100}, "multiple of 32"),
        ({"slots": 96, "front_ends": 2}, "multiple of 32"),
        ({"slots": 1 << 17}, "65536"),
        ({"log_entries": 100}, "power of two"),
        ({"flight_entries": 0}, "power of two"),
        ({"arena_tokens": 1}, "too small"),
    ],
)
def test_impossible_geometries_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RingGeometry(**change)
