"""The primitives: right values, atomic among threads, and the instructions they become."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from ring import atomics as a
from ring.jit import njit


@njit
def _all(words):
    a.store_release(words, 0, 5)
    first = a.load_acquire(words, 0) + a.load_relaxed(words, 1)
    swapped = a.compare_and_swap(words, 0, 5, 7)
    refused = a.compare_and_swap(words, 0, 5, 9)
    added = a.fetch_add(words, 1, 3)
    a.store_relaxed(words, 2, 11)
    a.fence()
    a.lane_barrier()
    a.pause(0)
    return first, swapped, refused, added, a.now_ns()


@pytest.mark.parametrize("function", [_all, _all.py_func], ids=["compiled", "python"])
def test_values(function) -> None:
    words = np.array([0, 10, 0], np.int64)
    before = time.monotonic_ns()
    first, swapped, refused, added, now = function(words)
    assert (first, swapped, refused, added) == (15, 5, 7, 10)
    assert words.tolist() == [7, 13, 11]
    assert before <= now <= time.monotonic_ns()


@njit
def _count(words, times):
    for _ in range(times):
        a.fetch_add(words, 0, 1)
        while True:
            seen = a.load_relaxed(words, 8)
            if a.compare_and_swap(words, 8, seen, seen + 1) == seen:
                break


def test_additions_of_threads_are_not_lost() -> None:
    words = np.zeros(16, np.int64)
    _count(words, 0)
    threads = [threading.Thread(target=_count, args=(words, 50_000)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert words[0] == words[8] == 150_000


@njit
def _hand_over(data, flag, times):
    for i in range(1, times + 1):
        while a.load_acquire(flag, 0) != i - 1:  # pairs with the taker's release
            a.pause(300)
        data[0] = i * 7
        a.store_release(flag, 0, -i)  # pairs with the taker's acquire


@njit
def _take_over(data, flag, times):
    wrong = 0
    for i in range(1, times + 1):
        while a.load_acquire(flag, 0) != -i:
            a.pause(300)
        if data[0] != i * 7:
            wrong += 1
        a.store_release(flag, 0, i)
    return wrong


def test_payload_is_there_when_its_flag_is() -> None:
    data, flag = np.zeros(1, np.int64), np.zeros(1, np.int64)
    _hand_over(data, flag, 0)
    giver = threading.Thread(target=_hand_over, args=(data, flag, 2_000))
    giver.start()
    wrong = _take_over(data, flag, 2_000)
    giver.join(60)
    assert wrong == 0
    assert not giver.is_alive()


@pytest.mark.parametrize("kind", [np.uint64, np.int32, np.float64])
def test_other_types_do_not_compile(kind) -> None:
    @njit(cache=False)
    def load(words):
        return a.load_acquire(words, 0)

    with pytest.raises(Exception, match="int64"):
        load(np.zeros(1, kind))


def test_a_long_pause_sleeps_and_a_short_one_spins() -> None:
    assembly = "\n".join(_pausing().inspect_asm().values())
    assert "nanosleep" in assembly
    assert "pause" in assembly or "yield" in assembly or "hint" in assembly


def _pausing():
    @njit(cache=False)
    def pausing(spins):
        a.pause(spins)

    pausing(0)
    return pausing
