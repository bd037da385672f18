"""The claim hammer: its steps on the CPU's threads, its kernel compiled for the GPU."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from blink_numba.verify.hammer_steps import T_LATE, T_VIOLATIONS, TALLIES, adopt, contend, host_front_end
from ring.atomics import load_relaxed
from ring.jit import njit
from ring.layout import DEVICE_PLACEMENT, RingGeometry
from ring.views import format_ring, host_view
from scheduler import state as sc
from scheduler.build import cpu_loop  # noqa: F401 — the step's modules in their usual order
from tests.scheduler.harness import SMALL

SLOTS = 32
REQUESTS = 30_000


@njit(cache=False)
def claim_until(ring, state, wins, stop, counts, me):
    """Contend for all slots until told to stop."""
    slot = me * 7
    while load_relaxed(stop, 0) == 0:
        found = contend(ring, state, wins, slot % SLOTS)
        slot += 1
        counts[2 * me] += found >= 2
        counts[2 * me + 1] += found == 3


def test_each_claim_is_won_once_on_threads():
    geometry = RingGeometry(slots=SLOTS, arena_tokens=64, log_entries=4, flight_entries=2)
    words = np.zeros(geometry.words(), np.int64)
    format_ring(words, geometry)
    ring = host_view(words)
    state = sc.state_view(sc.make_state(SMALL, geometry, placement=DEVICE_PLACEMENT))
    wins, stop = np.zeros(SLOTS, np.int64), np.zeros(1, np.int64)
    counts, tallies, states = (
        np.zeros(32, np.int64),
        np.zeros(TALLIES, np.int64),
        np.zeros(2 * SLOTS, np.int64),
    )
    host_front_end(ring, wins, states, 1, 0, 0, tallies)
    claim_until(ring, state, wins, np.ones(1, np.int64), counts, 0)  # compiled before the race
    claimers = [
        threading.Thread(target=claim_until, args=(ring, state, wins, stop, counts, me), daemon=True)
        for me in range(3)
    ]
    for claimer in claimers:
        claimer.start()
    try:
        finished = host_front_end(ring, wins, states, 3, 2 * REQUESTS, REQUESTS, tallies)
        assert np.any(states[::2])  # it died with requests in flight
        assert adopt(ring, states) == 0
        finished += host_front_end(ring, wins, states, 5, REQUESTS, 0, tallies)
    finally:
        stop[0] = 1
        for claimer in claimers:
            claimer.join(60.0)
    assert finished >= 2 * REQUESTS
    assert tallies[T_VIOLATIONS] == 0
    assert tallies[T_LATE] == 0
    assert counts[0:6:2].sum() == wins.sum() == state.core[sc.K_CLAIMED] >= finished
    assert counts[1:6:2].sum() == 0


def test_the_kernel_compiles_for_the_gpu():
    pytest.importorskip("cuda.bindings", reason="needs the CUDA bindings")
    from numba.core import types as t

    from blink_numba.verify.hammer_kernels import claim_hammer
    from tests.cuda_compile import compile_kernel, resources

    words = t.int64[::1]
    ptx = compile_kernel(claim_hammer, (words, t.int32[::1], words, words, words, t.int64, t.int64, t.int64))
    assert "atom.acq_rel.sys.cas.b64" in ptx
    assert "ld.acquire.sys.global.b64" in ptx
    used = resources(ptx)
    assert used["registers"] <= 64
    assert (used["stack"], used["spills"]) == (0, 0)
