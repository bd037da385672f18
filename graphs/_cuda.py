"""The one place of this package that imports CUDA: Numba's target and the driver's bindings.

Importing it needs the ``cuda`` extra, not a GPU.
"""

from __future__ import annotations

from typing import Any

import numba.cuda
import numba.cuda.extending
from cuda.bindings import driver as _driver  # pyright: ignore[reportAttributeAccessIssue]
from numba.cuda.core import config as _config

# typed Any: what Numba does to Python functions is beyond a type checker
_extending: Any = numba.cuda.extending
driver: Any = _driver
intrinsic: Any = _extending.intrinsic
cuda_overload: Any = _extending.overload
types: Any = numba.types
cuda: Any = numba.cuda

# a scheduler is one block and a decode step has few rows: low occupancy is meant
_config.CUDA_LOW_OCCUPANCY_WARNINGS = 0

__all__ = ["CudaError", "check", "cuda", "cuda_overload", "driver", "intrinsic", "new_stream", "types"]


class CudaError(RuntimeError):
    """A CUDA driver call failed; the message names the call's purpose and CUDA's error."""


def check(outcome: tuple, doing: str) -> Any:
    """The result of a driver call; `CudaError` saying what was being done if it failed."""
    error, *rest = outcome
    if error != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(error)
        explanation = text.decode() if isinstance(text, bytes) else str(text)
        raise CudaError(f"{doing}: {error.name} ({explanation})")
    return rest[0] if len(rest) == 1 else tuple(rest)


def new_stream():
    """A non-blocking stream (Numba's own would wait for the legacy stream); ``int(stream)`` is its handle."""
    from cuda.core import Device  # pyright: ignore[reportAttributeAccessIssue]

    device = Device()
    device.set_current()
    stream = device.create_stream()
    wrapped = cuda.external_stream(int(stream.handle))
    wrapped.owner = stream  # keeps it alive
    return wrapped
