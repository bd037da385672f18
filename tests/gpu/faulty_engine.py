"""An engine's process with planted faults: ``python -m tests.gpu.faulty_engine FAULTS …``.

The other arguments are those of ``python -m blink_numba.runtime``. The engine computes nothing
(`blink_numba.bench.null_engine`), so every answer is known.
"""

from __future__ import annotations

import sys

import numpy as np

from blink_numba.bench.null_engine import NullBackend, NullEngine
from blink_numba.models import load_model
from blink_numba.runtime import __main__ as process
from graphs._cuda import cuda
from ring.atomics import now_ns, pause
from scheduler import state as sc
from scheduler.policy import named_policy

# fault: the step in which it happens; `launch` happens at the first window's end
STEP_OF = {"spin": 200, "wild": 350, "endless": 50}
SPIN_NS, ENDLESS_NS = 3_000_000_000, 30_000_000_000  # past the deadline; longer than anybody waits
OVERDRAWN = 40  # launches that the scheduler believes to have beyond its window
NEVER = 1 << 40


@cuda.jit
def plant(steps, spin_at, spin_ns, wild_at):
    """Count steps; misbehave in some: spin, or write where no memory is."""
    steps[0] += 1
    if steps[0] == spin_at:
        began = now_ns()
        while now_ns() - began < spin_ns:
            pause(1000)
    if steps[0] == wild_at:
        steps[1 << 40] = 1


class FaultyEngine(NullEngine):
    """Begins each step with `plant`."""

    def __init__(self, spec, faults: list[str]) -> None:
        endless = "endless" in faults
        spin = "endless" if endless else "spin"
        self._spin_at = STEP_OF[spin] if spin in faults else NEVER
        self._spin_ns = ENDLESS_NS if endless else SPIN_NS
        self._wild_at = STEP_OF["wild"] if "wild" in faults else NEVER
        self._steps = cuda.to_device(np.full(1, 1 << 20, np.int64))  # the constructor's steps are well
        super().__init__(spec)
        self._steps.copy_to_device(np.zeros(1, np.int64))

    def enqueue(self, kind: int, shape: int, stream) -> None:
        plant[1, 1, stream](self._steps, self._spin_at, self._spin_ns, self._wild_at)
        super().enqueue(kind, shape, stream)


class FaultyBackend(NullBackend):
    """A resident scheduler over a `FaultyEngine`."""

    faults: list[str] = []

    def _make_engine(self, model, limits) -> FaultyEngine:
        return FaultyEngine(limits.spec(model.config), self.faults)

    def new_state(self, geometry, placement: int) -> np.ndarray:
        words = super().new_state(geometry, placement)
        if "launch" in self.faults:
            sc.state_view(words).core[sc.K_WINDOW] = -OVERDRAWN
        return words


def main() -> int:
    """Run the engine's process over the faulty backend."""
    FaultyBackend.faults = [fault for fault in sys.argv.pop(1).split(",") if fault]
    return process.main(
        lambda config, progress: FaultyBackend(
            load_model("tiny"), config, named_policy(config.policy), progress
        )
    )


if __name__ == "__main__":
    sys.exit(main())
