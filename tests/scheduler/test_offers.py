"""The search of all lanes: for who is seated next, and for whose seat it would be."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from greenlet import getcurrent, greenlet
from hypothesis import given
from hypothesis import strategies as st

from graphs.step_io import EngineSpec
from ring.layout import RingGeometry
from ring.states import DECODE_PROCESSING, PREFILL_PROCESSING
from scheduler import state as sc
from scheduler.admit import GROUP, KEY, OFFERED, OWN_KEY, TICKET, VICTIMS, take_best
from scheduler.state import NO_SLOT
from tests.scheduler.harness import COPY

OFFERS = st.tuples(st.integers(NO_SLOT, 40), st.integers(-3, 3), st.integers(0, 5), st.integers(0, 9))


@given(st.lists(OFFERS, min_size=1, max_size=sc.LANES))
def test_the_best_of_any_number_of_lanes_is_found(offers):
    lanes = len(offers)
    state = SimpleNamespace(best=np.full(sc.LANES * sc.OFFER_WORDS, 77, np.int64))
    state.best[: lanes * sc.OFFER_WORDS] = np.array(offers).ravel()
    for lane in range(lanes):
        if lane * GROUP < lanes:
            take_best.py_func(state, lane * GROUP, 1, min((lane + 1) * GROUP, lanes))
    take_best.py_func(state, 0, GROUP, lanes)
    made = [offer for offer in offers if offer[0] != NO_SLOT]
    best = min(((key, ticket) for _, key, ticket, _ in made), default=None)
    found = tuple(state.best[: sc.OFFER_WORDS].tolist())
    if best is None:
        assert found[0] == NO_SLOT
    else:
        assert found in offers
        assert found[1:3] == best


REQUEST = st.tuples(st.integers(-3, 3), st.integers(-3, 3))  # what it is seated by, and unseated by
SEATED = st.one_of(st.none(), st.tuples(REQUEST, st.sampled_from([DECODE_PROCESSING, PREFILL_PROCESSING])))


@given(st.lists(REQUEST, min_size=1, max_size=80), st.lists(SEATED, min_size=20, max_size=20), st.data())
def test_any_number_of_lanes_finds_what_one_would(waiting, seats, data):
    lanes = data.draw(st.sampled_from([1, 2, 16, 33, 100, sc.LANES]))
    state, keys = scheduler_with(waiting, seats, data.draw(st.permutations(range(len(waiting) + 20))))
    search_with(lanes, state, lambda hot, words, slot: keys[slot][0], lambda hot, words, slot: keys[slot][1])

    def ticket(slot):
        return int(state.slots[slot * sc.SLOT_WORDS + sc.SL_TICKET])

    best = min(range(len(waiting)), key=lambda slot: (keys[slot][0], ticket(slot)))
    assert (state.best[OFFERED], state.best[KEY], state.best[TICKET]) == (best, keys[best][0], ticket(best))
    if state.core[sc.K_DECODING] > 0:
        decoding = [
            (keys[slot][1], ticket(slot), seat)
            for seat, slot in enumerate(range(len(waiting), len(waiting) + 20))
            if seats[seat] is not None and seats[seat][1] == DECODE_PROCESSING
        ]
        seat = max(decoding)[2]
        found = VICTIMS * sc.OFFER_WORDS
        assert state.best[found + OFFERED] == seat
        assert state.best[found + OWN_KEY] == keys[len(waiting) + seat][0]


def scheduler_with(waiting, seats, tickets):
    """A state with these requests, and the two keys of each slot: first those that wait."""
    spec = EngineSpec(
        seats=len(seats), block_size=16, blocks=80, blocks_per_seat=4, max_model_len=64, vocab_size=10,
        eos_ids=(), decode_batches=(len(seats),), prefill_tokens=(16,), prefill_sequences=1,
    )  # fmt: skip
    state = sc.state_view(sc.make_state(spec, RingGeometry(slots=128)))
    keys = list(waiting)
    for slot in range(len(waiting)):
        state.waiting[slot] = slot
    for seat, held in enumerate(seats):
        keys.append((0, 0) if held is None else held[0])
        if held is not None:
            state.seats[seat * sc.SEAT_WORDS + sc.SE_SLOT] = len(waiting) + seat
            state.seats[seat * sc.SEAT_WORDS + sc.SE_STATE] = held[1]
            state.core[sc.K_DECODING] += held[1] == DECODE_PROCESSING
    for slot, ticket in enumerate(tickets):
        state.slots[slot * sc.SLOT_WORDS + sc.SL_TICKET] = ticket
    state.core[sc.K_WAITING] = len(waiting)
    state.policy[sc.P_PREEMPTIVE] = 1
    state.best[:] = 77
    return state, keys


def search_with(lanes, state, key, victim):
    """The search as plain Python, each lane a greenlet that gives way at barriers."""
    admit = COPY.module("scheduler.admit")
    real, admit.lane_barrier = admit.lane_barrier, lambda: getcurrent().parent.switch()
    try:
        running = [
            greenlet(lambda lane=lane: admit._search(state, key, victim, lane, lanes))
            for lane in range(lanes)
        ]
        while running:
            for lane in running:
                lane.switch()
            assert len({lane.dead for lane in running}) == 1, "some lanes left a barrier out"
            running = [lane for lane in running if not lane.dead]
    finally:
        admit.lane_barrier = real
