"""An engine's process with a planted fault: ``python -m tests.gpu.faulty_engine FAULT …``.

The other arguments are those of ``python -m blink_numba.runtime``. The engine computes nothing
(`blink_numba.bench.null_engine`), so every answer is known.
"""

from __future__ import annotations

import sys

import numpy as np

from blink_numba.bench.null_engine import NullBackend, NullEngine
from blink_numba.models import load_model
from blink_numba.runtime import __main__ as process
from blink_numba.runtime import local
from graphs._cuda import cuda
from ring.atomics import now_ns, pause
from scheduler import state as sc
from scheduler.policy import named_policy

# fault: (kind, nanoseconds of a spin)
NONE, SPIN, WILD, LAUNCH = range(4)
FAULTS = {
    "none": (NONE, 0),
    "spin": (SPIN, 3_000_000_000),  # past the deadline, but it ends
    "endless": (SPIN, 30_000_000_000),  # longer than anybody waits
    "wild": (WILD, 0),
    "launch": (LAUNCH, 0),
}
AT_STEP = 50
OVERDRAWN = 40  # launches that the scheduler believes to have beyond its window


@cuda.jit
def plant(counter, kind, spin_ns):
    """Count steps; misbehave in one of them."""
    counter[0] += 1
    if counter[0] == AT_STEP:
        if kind == SPIN:
            began = now_ns()
            while now_ns() - began < spin_ns:
                pause(1000)
        elif kind == WILD:
            counter[1 << 40] = 1


class FaultyEngine(NullEngine):
    """Begins each step with `plant`."""

    def __init__(self, spec, fault: str) -> None:
        self._kind, self._spin_ns = FAULTS[fault]
        self._counter = cuda.to_device(np.full(1, 1 << 20, np.int64))  # the constructor's steps are well
        super().__init__(spec)
        self._counter.copy_to_device(np.zeros(1, np.int64))

    def enqueue(self, kind: int, shape: int, stream) -> None:
        plant[1, 1, stream](self._counter, self._kind, self._spin_ns)
        super().enqueue(kind, shape, stream)


class FaultyBackend(NullBackend):
    """A resident scheduler over a `FaultyEngine`."""

    fault = "none"

    def _make_engine(self, model, limits) -> FaultyEngine:
        return FaultyEngine(limits.spec(model.config), self.fault)

    def new_state(self, geometry, placement: int) -> np.ndarray:
        words = super().new_state(geometry, placement)
        if FAULTS[self.fault][0] == LAUNCH:
            sc.state_view(words).core[sc.K_WINDOW] = -OVERDRAWN
        return words


def main() -> int:
    """Run the engine's process over the faulty backend."""
    FaultyBackend.fault = sys.argv.pop(1)
    local.make_backend = lambda config, progress: FaultyBackend(
        load_model("tiny"), config, named_policy(config.policy), progress
    )
    return process.main()


if __name__ == "__main__":
    sys.exit(main())
