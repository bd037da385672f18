"""Preloaded policies: through the configuration to the engine's process, and into one kernel."""

from __future__ import annotations

import numpy as np
import pytest

from blink_numba.config import ServeConfig
from blink_numba.runtime import EngineConfig
from ring.layout import RingGeometry
from scheduler import state as sc
from scheduler.build import combine, set_up
from scheduler.policies import find
from scheduler.policy import PolicyError, install, preload
from tests.scheduler.harness import SMALL


def test_names_reach_the_engine():
    config = ServeConfig(preload_policies=["srpt", "vtc"]).engine()
    assert config.preload == ("srpt", "vtc")
    assert EngineConfig.from_json(config.to_json()) == config


def test_another_policy_joins_those_preloaded():
    """What a backend does when it resumes with a policy that the kernel did not have."""
    words = sc.make_state(SMALL, RingGeometry(slots=32, arena_tokens=64))
    fcfs, srpt, edf = find("fcfs"), find("srpt"), find("edf")
    set_up(words, fcfs, [fcfs, srpt])
    state = sc.state_view(words)
    preload(state, [edf, srpt])
    install(state, edf)
    assert state.policy[sc.P_PRESETS] == 2
    assert state.policy[sc.P_ACTIVE] == 0
    together = combine([edf, srpt], "edf")
    state.slots[sc.SL_DEADLINE] = 77
    assert together.key(state.hot, state.words, 0) == edf.key(state.hot, state.words, 0)
    state.policy[sc.P_ACTIVE] = 1
    assert together.key(state.hot, state.words, 0) == srpt.key(state.hot, state.words, 0)


def test_one_policy_twice_is_refused():
    with pytest.raises(PolicyError, match="one name"):
        combine([find("srpt"), find("srpt")])
    assert np.int64(sc.PRESETS) >= 9, "all that are shipped can be preloaded at once"
