"""The project's `njit`: functions without an entry for Python are still called from it."""

from __future__ import annotations

import numpy as np

from ring.jit import njit, uncounted


@uncounted
def first(words):
    return words[0]


@njit(cache=False)
def first_of(words):
    return first(words)


def test_an_uncounted_function_answers_compiled_code_and_python():
    words = np.array([7, 8])
    assert first_of(words) == 7
    assert first(words) == 7, "compiled code made an overload that has no entry for Python"
    assert first(words.astype(np.float64)) == 7.0
    assert list(first.overloads) == [first.signatures[0]], "Python's calls go to a twin"
