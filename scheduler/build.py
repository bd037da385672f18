"""From a policy to a compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba.core import types

from ring.jit import njit
from scheduler.loops.cpu import run
from scheduler.policy import Policy


@dataclass(frozen=True)
class CpuLoop:
    """The CPU loop of a policy; call it on the thread that is to be the scheduler."""

    policy: Policy
    compiled: Callable[..., int]

    def __call__(
        self, words: np.ndarray, state: np.ndarray, io: np.ndarray, table: np.ndarray, launcher: np.ndarray
    ) -> int:
        """Run until stopped or faulted; returns the verdict (`scheduler.state`)."""
        return int(self.compiled(words, words.view(np.int32), state, io, table, launcher))

    def compile(self) -> None:
        """Compile now, so that the first call does not."""
        wide, half = types.int64[::1], types.int32[::1]
        self.compiled.compile((wide, half, wide, wide, wide, wide))  # type: ignore[attr-defined]


def cpu_loop(policy: Policy) -> CpuLoop:
    """The loop of a policy."""
    key, may_admit = policy.key, policy.may_admit
    prefill_or_decode, victim = policy.prefill_or_decode, policy.victim

    @njit(cache=False)
    def loop(words, narrow, state, io, table, launcher):
        return run(words, narrow, state, io, table, launcher, key, may_admit, prefill_or_decode, victim)

    return CpuLoop(policy, loop)
