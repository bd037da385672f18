"""Engines: the forward pass of a model behind the step buffer.

An engine is opaque to the scheduler: fixed input buffers, a launch, fixed output buffers
(`graphs.step_io`). `EngineLimits` sizes one; `sampling` defines what all of them draw. The CPU
engine is `blink_numba.engines.cpu.CpuEngine`, the CUDA engine `blink_numba.engines.cuda.CudaEngine`;
neither is imported before it is asked for.
"""

from __future__ import annotations

from blink_numba.engines.limits import EngineLimits

__all__ = ["EngineLimits"]
