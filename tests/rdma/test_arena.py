"""The arena's allocator: extents never overlap, joins are complete, waste is bounded."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdma.arena import TOKENS_PER_LINE, Arena


@settings(max_examples=200, deadline=None)
@given(
    start=st.integers(0, 100),
    size=st.integers(0, 5000),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 700)), max_size=80),
)
def test_extents_stay_inside_and_apart(start, size, steps):
    arena = Arena(start, size)
    taken: dict[int, int] = {}
    for release, number in steps:
        if release and taken:
            first = list(taken)[number % len(taken)]
            del taken[first]
            arena.release(first)
        elif not release:
            first = arena.allocate(number)
            if first is None:
                continue
            assert first % TOKENS_PER_LINE == 0
            assert start <= first
            assert first + number <= start + size
            assert all(first + number <= other or other + length <= first for other, length in taken.items())
            taken[first] = number
    for first in taken:
        arena.release(first)
    assert arena.free_lines == arena.lines
    if arena.lines:
        assert arena.allocate(arena.lines * TOKENS_PER_LINE) is not None  # one extent again


def test_an_extent_of_exactly_the_room_left_is_found():
    arena = Arena(0, 1000 * TOKENS_PER_LINE)
    held = [arena.allocate(10 * TOKENS_PER_LINE) for _ in range(100)]
    assert arena.allocate(1) is None
    arena.release(held[50])
    assert arena.allocate(10 * TOKENS_PER_LINE) == held[50]


def test_steady_traffic_at_four_fifths_full_is_not_refused_for_fragmentation():
    rng = random.Random(7)
    arena = Arena(0, 1 << 20)
    live: list[int] = []
    held = refused = 0
    sizes: dict[int, int] = {}
    for _ in range(20_000):
        size = rng.randrange(16, 4096)
        if held + size < 0.8 * (1 << 20):
            first = arena.allocate(size)
            if first is None:
                refused += 1
                continue
            sizes[first] = size
            live.append(first)
            held += size
        else:
            first = live.pop(rng.randrange(len(live)))
            arena.release(first)
            held -= sizes.pop(first)
    assert refused == 0


def test_releasing_what_was_not_taken():
    with pytest.raises(KeyError):
        Arena(0, 1024).release(16)
