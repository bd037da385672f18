"""What every transport must do (`rdma.transport`), as checks that take any of them.

Run for the transports of this machine by `test_contract.py`, and for verbs inside the guest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rdma.operations import PUBLISH, READ, WRITE, Operations
from rdma.staging import Share
from rdma.transport import Transport, TransportError
from ring import layout as at

STAGING_WORDS = 1 << 13


class Bench:
    """A transport as front end 0 of a ring whose `words` this process also reaches by itself."""

    def __init__(self, words: Any, transport: Transport) -> None:
        self.ring = words
        self.transport = transport
        self.staging = transport.allocate(STAGING_WORDS)
        self.share = Share(transport.ring, 0)

    def run(self, *rows: tuple[int, int, int, int]) -> None:
        self.post(*rows)
        self.transport.complete()

    def post(self, *rows: tuple[int, int, int, int]) -> None:
        batch = Operations(len(rows))
        for row in rows:
            batch.table[batch.count] = row  # not merged: the rows are what is tested
            batch.count += 1
        self.transport.post(batch)


def a_read_brings_what_is_there(bench: Bench) -> None:
    size = 64
    start = bench.share.ctl
    bench.ring[start : start + size] = np.arange(size) * 3 + 1
    bench.run((READ, start, 16, size))
    assert np.array_equal(bench.staging[16 : 16 + size], np.arange(size) * 3 + 1)
    assert not bench.staging[:16].any()
    assert not bench.staging[16 + size :].any()


def a_write_lands_and_spares_its_neighbours(bench: Bench) -> None:
    for size in (1, 3, 8, 9, 100):  # below and above what travels inside a work request
        start = bench.share.descriptor + 5
        bench.ring[start - 1 : start + size + 1] = -1
        bench.staging[:size] = np.arange(size) + size
        bench.run((WRITE, start, 0, size))
        assert bench.ring[start : start + size].tolist() == [size + k for k in range(size)]
        assert bench.ring[start - 1] == bench.ring[start + size] == -1


def a_large_read_and_a_large_write_are_whole(bench: Bench) -> None:
    rng = np.random.default_rng(1)
    pattern = rng.integers(0, 1 << 62, 4096)
    start = bench.share.arena
    bench.staging[:4096] = pattern
    bench.run((WRITE, start, 0, 4096))
    assert np.array_equal(bench.ring[start : start + 4096], pattern)
    bench.run((READ, start, 4096, 4096))
    assert np.array_equal(bench.staging[4096:], pattern)


def rows_take_effect_in_order(bench: Bench) -> None:
    start = bench.share.req
    bench.staging[:4] = (11, 22, 33, 44)
    bench.run(
        (WRITE, start, 0, 1), (PUBLISH, start, 1, 1), (READ, start, 8, 1), (PUBLISH, start, 2, 1),
        (READ, start, 9, 1), (PUBLISH, start + 1, 3, 1),
    )  # fmt: skip
    assert bench.ring[start : start + 2].tolist() == [33, 44]
    assert bench.staging[8:10].tolist() == [22, 33]


def batches_take_effect_in_the_order_posted(bench: Bench) -> None:
    start = bench.share.req
    for value in range(40):
        bench.staging[value] = value + 1
    for value in range(40):
        bench.post((PUBLISH, start, value, 1))
    bench.transport.complete()
    assert bench.ring[start] == 40


def a_batch_longer_than_any_queue_runs(bench: Bench) -> None:
    start = bench.share.descriptor
    bench.staging[:1000] = np.arange(1000) + 7
    bench.run(*((WRITE, start + k, k, 1) for k in range(1000)))
    assert np.array_equal(bench.ring[start : start + 1000], np.arange(1000) + 7)


def running_a_batch_again_changes_nothing(bench: Bench) -> None:
    start = bench.share.req
    bench.staging[:2] = (5, 6)
    rows = ((WRITE, start, 0, 1), (PUBLISH, start + 1, 1, 1), (READ, start, 4, 2))
    bench.run(*rows)
    bench.run(*rows)
    assert bench.ring[start : start + 2].tolist() == [5, 6]
    assert bench.staging[4:6].tolist() == [5, 6]


def posts_and_bytes_are_counted_and_nothing_is_no_post(bench: Bench) -> None:
    counters = bench.transport.counters
    before = (counters.posts, counters.operations, counters.bytes_read, counters.bytes_written)
    bench.run()
    bench.transport.complete()
    assert counters.posts == before[0]
    bench.run((READ, bench.share.ctl, 0, 10), (WRITE, bench.share.req, 0, 3))
    assert counters.posts - before[0] == 1
    assert counters.operations - before[1] == 2
    assert counters.bytes_read - before[2] == 80
    assert counters.bytes_written - before[3] == 24


def a_word_is_never_torn(bench: Bench) -> None:
    start, patterns = bench.share.ctl, (0x0123_4567_89AB_CDEF, 0x7654_3210_FEDC_BA98)
    bench.ring[start] = patterns[0]
    ended = threading.Event()

    def flip() -> None:
        k = 0
        while not ended.is_set():
            bench.ring[start] = patterns[k & 1]
            k += 1

    writer = threading.Thread(target=flip)
    writer.start()
    try:
        for _ in range(100):
            bench.run((READ, start, 0, 1))
            assert int(bench.staging[0]) in patterns
    finally:
        ended.set()
        writer.join()


def what_lies_outside_the_ring_is_refused(bench: Bench) -> None:
    before = bench.ring[:].copy()
    with pytest.raises(TransportError):
        bench.run((READ, bench.transport.ring.words - 1, 0, 2))
    with pytest.raises(TransportError):
        bench.run((WRITE, bench.transport.ring.words, 0, 1))
    assert np.array_equal(bench.ring[:], before)


CONTRACT: list[Callable[[Bench], None]] = [
    a_read_brings_what_is_there,
    a_write_lands_and_spares_its_neighbours,
    a_large_read_and_a_large_write_are_whole,
    rows_take_effect_in_order,
    batches_take_effect_in_the_order_posted,
    a_batch_longer_than_any_queue_runs,
    running_a_batch_again_changes_nothing,
    posts_and_bytes_are_counted_and_nothing_is_no_post,
    a_word_is_never_torn,
    what_lies_outside_the_ring_is_refused,
]
SIZES = {"slots": 64, "front_ends": 2, "arena_tokens": 1 << 15, "log_entries": 1 << 10, "flight_entries": 16}
assert at.DESCRIPTOR_WORDS * 32 >= 1000  # the longest batch fits the descriptors of front end 0
