"""Text of an answer depends on its tokens alone, however they were grouped on their way."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_numba.answer import Answer, StopStrings
from blink_numba.vocabularies import load_tokenizer
from ring.states import Reason

TINY = load_tokenizer("tiny")
EOS = frozenset(TINY.eos_ids)


def answer_of(groups, reason=Reason.LENGTH, **options) -> tuple[str, Answer]:
    answer = Answer(TINY.stream_decoder(), eos_ids=EOS, **options)
    text = "".join([answer.push(group) for group in groups])
    return text + answer.end(reason), answer


def ids(text: str) -> list[int]:
    return list(text.encode())


def test_characters_come_whole():
    answer = Answer(TINY.stream_decoder())
    pieces = [answer.push([byte]) for byte in ids("né")]
    assert pieces == ["n", "", "é"]


def test_half_a_character_at_the_end_becomes_a_replacement():
    assert answer_of([[*ids("n"), 0xC3]])[0] == "n\ufffd"


def test_end_of_sequence_is_counted_but_no_text():
    text, answer = answer_of([ids("ab"), [257]], Reason.STOP)
    assert (text, answer.finish, answer.tokens, answer.stop_reason) == ("ab", "stop", 3, None)


def test_stop_id_is_left_out_and_named():
    text, answer = answer_of([ids("abX")], Reason.STOP, stop_ids=frozenset(ids("X")))
    assert (text, answer.finish, answer.stop_reason) == ("ab", "stop", ord("X"))


def test_stop_id_before_min_tokens_stays_in_the_text():
    assert answer_of([ids("aXb")], stop_ids=frozenset(ids("X")))[0] == "aXb"


def test_stop_id_as_last_token_of_a_full_answer_stays_in_the_text():
    text, answer = answer_of([ids("abX")], Reason.LENGTH, stop_ids=frozenset(ids("X")))
    assert (text, answer.finish) == ("abX", "length")


@pytest.mark.parametrize(
    ("text", "stops", "shown", "tokens"),
    [
        ("one two three", ("two",), "one ", 7),
        ("one two three", ("three", "two"), "one ", 7),
        ("aab", ("ab",), "a", 3),
        ("xaby", ("abc", "by"), "xa", 4),
        ("nothing", ("zzz",), "nothing", 7),
        ("ends in a beginning: st", ("stop",), "ends in a beginning: st", 23),
        ("héé!", ("é!",), "hé", 6),
    ],
)
def test_stop_strings(text, stops, shown, tokens):
    got, answer = answer_of([[token] for token in ids(text)], stops=stops)
    assert (got, answer.tokens) == (shown, tokens)


def test_stop_string_may_be_kept():
    assert answer_of([ids("one two three")], stops=("two",), include_stop=True)[0] == "one two"


def test_stop_string_before_min_tokens_does_not_end_the_answer():
    text, answer = answer_of([[token] for token in ids("a.b.c")], stops=(".",), min_tokens=3)
    assert (text, answer.tokens) == ("a.b", 4)


def test_nothing_is_shown_that_may_begin_a_stop_string():
    answer = Answer(TINY.stream_decoder(), stops=("END",))
    assert [answer.push([token]) for token in ids("xENxE")] == ["x", "", "", "ENx", ""]


@given(
    text=st.text(alphabet="abé€😀\n", max_size=40),
    stops=st.lists(st.text(alphabet="abé€", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    min_tokens=st.integers(0, 10),
    reason=st.sampled_from([Reason.LENGTH, Reason.STOP]),
)
def test_grouping_does_not_matter(text, stops, cuts, min_tokens, reason):
    tokens = ids(text) + ([257] if reason is Reason.STOP else [])
    edges = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    groups = [tokens[a:b] for a, b in pairwise(edges)]
    options = {"stops": tuple(stops), "min_tokens": min_tokens}
    one, first = answer_of([[token] for token in tokens], reason, **options)
    other, second = answer_of(groups, reason, **options)
    assert (one, first.tokens, first.finish) == (other, second.tokens, second.finish)


@given(
    text=st.text(alphabet="ab", max_size=30), stops=st.lists(st.text(alphabet="ab", min_size=1), min_size=1)
)
def test_held_back_is_the_longest_beginning_of_a_stop_string(text, stops):
    held = StopStrings(tuple(stops)).held(text)
    endings = [
        k for k in range(1, len(text) + 1) for stop in stops if len(stop) > k and stop.startswith(text[-k:])
    ]
    assert held == max(endings, default=0)
