"""Hypothesis chooses setups and schedules. ``HYPOTHESIS_PROFILE=long`` looks longer."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("greenlet", reason="the model checker needs greenlet")
pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, settings

from blink_numba.verify.machine import ProtocolMachine

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"

TestProtocol = ProtocolMachine.TestCase
TestProtocol.settings = settings(
    max_examples=2000 if LONG else 40, stateful_step_count=40 if LONG else 20, deadline=None,
    suppress_health_check=list(HealthCheck), derandomize=not LONG, print_blob=True,
)  # fmt: skip
