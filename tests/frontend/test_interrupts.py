"""Ctrl-C held back: what happens to it in a block, at a look, and at the end."""

from __future__ import annotations

import signal
import threading

import pytest

from blink_numba.interrupts import held_back


@pytest.fixture(autouse=True)
def python_s_own_handler():
    """Whatever this process inherited: a shell's background jobs ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_comes_at_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt), held_back():
        ctrl_c()
        done.append("the rest")
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_comes_at_a_look_once():
    done = []
    with pytest.raises(KeyboardInterrupt), held_back() as interrupts:
        interrupts.look()
        ctrl_c()
        done.append("half")
        try:
            interrupts.look()
        finally:
            interrupts.look()
            done.append("given back")
    assert done == ["half", "given back"]


def test_it_wakes_who_waits():
    woken = []
    with pytest.raises(KeyboardInterrupt), held_back(lambda: woken.append(True)):
        ctrl_c()
    assert woken == [True]


def test_who_insists_gets_through_and_is_heard_once():
    done = []
    with pytest.raises(KeyboardInterrupt), held_back():
        ctrl_c()
        ctrl_c()
        done.append("never")
    assert done == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_is_not_lost_when_the_block_fails():
    with pytest.raises(KeyboardInterrupt) as raised, held_back():
        ctrl_c()
        raise ValueError("something else")
    assert isinstance(raised.value.__context__, ValueError)


def test_a_handler_of_the_user_s_is_called_and_may_go_on():
    calls = []
    signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    with held_back() as interrupts:
        ctrl_c()
        assert calls == []
        interrupts.look()
        assert calls == [signal.SIGINT]
    assert calls == [signal.SIGINT]


def test_blocks_may_be_nested():
    done = []
    with pytest.raises(KeyboardInterrupt), held_back():
        with held_back():
            ctrl_c()
        done.append("the outer block's rest")
    assert done == ["the outer block's rest"]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_handler_that_is_not_python_s_is_left_alone(handler):
    signal.signal(signal.SIGINT, handler)
    with held_back():
        assert signal.getsignal(signal.SIGINT) is handler


def test_other_threads_hold_nothing_back():
    seen = []

    def body() -> None:
        with held_back() as interrupts:
            interrupts.look()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
