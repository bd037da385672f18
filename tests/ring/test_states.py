"""The table of edges, and what is read from it."""

from __future__ import annotations

from ring.states import (
    EDGES,
    FRONT_END,
    LIVE,
    SCHEDULER,
    Reason,
    State,
    diagram,
    is_legal,
    is_live,
    slot_state,
)
from ring.words import CANCEL, RELEASE, SUBMIT, pack_ctl, pack_req


def test_every_state_can_be_reached_and_left() -> None:
    assert {before for before, _ in EDGES} == set(State)
    assert {after for _, after in EDGES} == set(State)


def test_only_release_belongs_to_the_front_end() -> None:
    owned = {edge for edge, (owner, _) in EDGES.items() if owner == FRONT_END}
    assert owned == {(State.DECODE_COMPLETED, State.EMPTY)}
    assert {owner for owner, _ in EDGES.values()} == {SCHEDULER, FRONT_END}


def test_every_live_state_may_end_at_once() -> None:
    for state in LIVE:
        assert is_legal(state, State.DECODE_COMPLETED)
        assert is_live(state)
    assert not is_live(State.EMPTY)
    assert not is_live(State.DECODE_COMPLETED)


def test_is_legal_is_the_table() -> None:
    for before in range(8):
        for after in range(8):
            listed = before < 6 and after < 6 and (State(before), State(after)) in EDGES
            assert is_legal(before, after) == listed


def test_empty_is_completed_and_released_of_one_incarnation() -> None:
    completed = pack_ctl(7, 3, Reason.STOP, State.DECODE_COMPLETED)
    assert slot_state(completed, pack_req(7, RELEASE)) == State.EMPTY
    assert slot_state(completed, pack_req(6, RELEASE)) == State.DECODE_COMPLETED
    assert slot_state(completed, pack_req(7, SUBMIT)) == State.DECODE_COMPLETED
    assert slot_state(completed, pack_req(7, CANCEL)) == State.DECODE_COMPLETED
    decoding = pack_ctl(7, 3, Reason.NONE, State.DECODE_PROCESSING)
    assert slot_state(decoding, pack_req(7, RELEASE)) == State.DECODE_PROCESSING


def test_diagram_names_every_edge() -> None:
    drawing = diagram()
    for before, after in EDGES:
        assert f"{before.name} --> {after.name}" in drawing
