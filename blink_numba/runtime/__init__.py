"""The engine at work: model, ring, scheduler and watchdog put together.

`EngineConfig` says what to run. `LocalEngine` runs it in this process, `EngineProcess` in a
child that can be stopped, killed and replaced while front ends and queued requests stay. The
host only provisions: it loads, compiles, captures, starts the scheduler, and from then on
looks. Backends: `cpu` (threads) and `cuda` (the scheduler is a kernel on the GPU).
"""

from __future__ import annotations

from blink_numba.runtime.config import EngineConfig
from blink_numba.runtime.local import LocalEngine
from blink_numba.runtime.process import EngineProcess

__all__ = ["EngineConfig", "EngineProcess", "LocalEngine"]
