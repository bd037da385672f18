"""The CPU engine: a Llama-family forward pass in Numba over a paged cache, by its own threads.

`weights` packs a model into panels of 32 outputs, `simd` gives Numba sixteen-lane vectors,
`matmul` multiplies panels with tiles of rows, `layers` and `attention` do the rest of a layer,
`forward` arranges them in phases for a `team` of threads, `step` reads and writes the step
buffer, `engine` owns memory and threads. A row's result is bit for bit the same in every
batch, seat and chunking: sums always run in one order, and no row's arithmetic sees another's.
"""

from __future__ import annotations

from blink_numba.engines.cpu.engine import CpuEngine, EngineError

__all__ = ["CpuEngine", "EngineError"]
