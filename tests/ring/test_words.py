"""Packed words: every field comes back, bit 63 stays clear, fields do not touch each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring import words as w

incarnations = st.integers(0, w.INCARNATION_MASK)


@given(incarnations, st.sampled_from([w.NONE, w.SUBMIT, w.CANCEL, w.RELEASE]))
def test_req_round_trips(incarnation: int, command: int) -> None:
    word = w.pack_req(incarnation, command)
    assert 0 <= word < 1 << 63
    assert (w.req_incarnation(word), w.req_command(word)) == (incarnation, command)


@given(incarnations, st.integers(0, w.TOKENS_MASK), st.integers(0, 15), st.integers(0, 15))
def test_ctl_round_trips(incarnation: int, tokens: int, reason: int, state: int) -> None:
    word = w.pack_ctl(incarnation, tokens, reason, state)
    assert 0 <= word < 1 << 63
    assert w.ctl_incarnation(word) == incarnation
    assert w.ctl_tokens(word) == tokens
    assert w.ctl_reason(word) == reason
    assert w.ctl_state(word) == state


@given(st.integers(0, 0xFFFF), incarnations, st.integers(0, 0xFFFFFFFF))
def test_log_entry_round_trips(slot: int, incarnation: int, token: int) -> None:
    word = w.pack_log(slot, incarnation, token)
    assert 0 <= word < 1 << 63
    assert w.log_slot(word) == slot
    assert w.log_incarnation(word) == incarnation & w.LOG_INCARNATION_MASK
    assert w.log_token(word) == token


def test_incarnations_wrap_and_change_parity_each_time() -> None:
    assert w.next_incarnation(w.INCARNATION_MASK) == 0
    for incarnation in (0, 1, w.INCARNATION_MASK - 1, w.INCARNATION_MASK):
        assert (w.next_incarnation(incarnation) ^ incarnation) & 1


@pytest.mark.parametrize("function", [w.ctl_state, w.req_command, w.next_incarnation])
def test_compiled_words_are_signed_integers(function) -> None:
    function(5)
    for signature in function.overloads:
        assert all("uint" not in str(kind) and "float" not in str(kind) for kind in signature)
        assert str(function.overloads[signature].signature.return_type) == "int64"
