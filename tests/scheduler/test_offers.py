"""The search of all lanes for one candidate: two rounds of comparisons find the best of any offers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler import state as sc
from scheduler.admit import GROUP, take_best
from scheduler.state import NO_SLOT

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
