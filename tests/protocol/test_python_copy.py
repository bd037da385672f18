"""The second copy of the protocol's modules: separate, uncompiled, editable."""

from __future__ import annotations

import sys

import pytest

import ring.words
import scheduler.seats
from ring.python_copy import CopyError, PythonCopy


@pytest.fixture
def copy():
    made = PythonCopy("copy_of_a_test")
    yield made
    made.close()


def test_functions_are_plain_and_separate(copy):
    reap = copy.module("scheduler.seats").reap
    assert not hasattr(reap, "py_func")
    assert hasattr(scheduler.seats.reap, "py_func")
    assert copy.module("ring.words") is not ring.words
    assert copy.module("ring.words").pack_ctl(3, 2, 1, 5) == ring.words.pack_ctl(3, 2, 1, 5)


def test_imports_lead_to_the_copy(copy):
    seats = copy.module("scheduler.seats")
    assert seats.pack_ctl is copy.module("ring.words").pack_ctl
    assert seats.sc is copy.module("scheduler.state")
    assert sys.modules["scheduler.seats"].sc is not seats.sc


def test_atomics_go_to_the_interposer(copy):
    class Seen:
        calls: list = []

        def load_acquire(self, array, index):
            self.calls.append((array, index))
            return 7

    atomics = copy.module("ring.atomics")
    atomics.interposer = Seen()
    assert atomics.load_acquire([1, 2], 1) == 7
    assert Seen.calls == [([1, 2], 1)]
    atomics.interposer = None
    assert atomics.load_acquire([1, 2], 1) == 2


def test_edits_change_the_copy_alone():
    edited = PythonCopy(
        "edited_copy_of_a_test", {"ring.words": [("(incarnation << 8) | command", "command")]}
    )
    assert edited.module("ring.words").pack_req(5, 2) == 2
    assert ring.words.pack_req(5, 2) == (5 << 8) | 2
    edited.close()


def test_an_edit_that_does_not_fit_is_an_error():
    edited = PythonCopy("misfit_copy_of_a_test", {"ring.words": [("no such text", "")]})
    with pytest.raises(CopyError, match="occurs 0 times"):
        edited.module("ring.words")
    edited.close()


def test_a_name_is_used_once(copy):
    copy.module("ring.words")
    with pytest.raises(CopyError, match="loaded already"):
        PythonCopy("copy_of_a_test")
