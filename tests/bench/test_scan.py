"""The scan that is measured: every placement finds every request, once."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.step_io import EngineSpec
from ring import layout as at
from ring.layout import RingGeometry
from ring.states import PREFILL_PENDING
from ring.views import format_ring, host_view
from ring.words import SUBMIT, ctl_incarnation, ctl_state, pack_req
from scheduler import state as sc
from scheduler.claim import scan

SPEC = EngineSpec(
    seats=1, decode_batches=(1,), prefill_tokens=(16,), prefill_sequences=1, block_size=16, blocks=1,
    blocks_per_seat=1, max_model_len=16, vocab_size=2, eos_ids=(),
)  # fmt: skip


@pytest.mark.parametrize("placement", [at.HOST_PLACEMENT, at.DEVICE_PLACEMENT], ids=["doorbells", "records"])
@pytest.mark.parametrize(("slots", "lanes"), [(4096, 256), (96, 1), (96, 256), (352, 32)])
def test_every_request_is_claimed_once(placement, slots, lanes):
    geometry = RingGeometry(slots=slots, arena_tokens=64, log_entries=2, flight_entries=2)
    words = np.zeros(geometry.words(), np.int64)
    format_ring(words, geometry)
    ring = host_view(words)
    state = sc.state_view(sc.make_state(SPEC, geometry, placement=placement))
    random = np.random.default_rng(slots + lanes)
    asked = np.zeros(slots, bool)
    for _ in range(4):
        fresh = np.flatnonzero(~asked & (random.random(slots) < 0.3))
        for slot in fresh:
            ring.req[slot] = pack_req(1, SUBMIT)
            ring.doorbell[slot // 32] |= 1 << int(slot % 32)
        asked[fresh] = True
        before = int(state.core[sc.K_CLAIMED])
        for lane in range(lanes):
            scan(ring, state, lane, lanes)
        assert state.core[sc.K_CLAIMED] - before == len(fresh)
        records = ring.ctl.reshape(-1, at.CTL_WORDS)[:, at.W0]
        claimed = [
            (ctl_incarnation(word), ctl_state(word)) == (1, PREFILL_PENDING) for word in records.tolist()
        ]
        assert claimed == asked.tolist()
