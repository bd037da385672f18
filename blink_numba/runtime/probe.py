"""Whether the CUDA backend can run here."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache

_NEEDED = ("numba_cuda", "cuda.core", "nvmath")


@cache
def cuda_usable() -> str | None:
    """None if the CUDA backend can run in this process, else the reason why not."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1)"
    if driver.cuInit(0) != 0:
        return "the NVIDIA driver does not start (cuInit failed)"
    count = ctypes.c_int(0)
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the driver sees no GPU"
    for module in _NEEDED:
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            return f"the Python module {module} is missing: pip install 'blink-numba[cuda]'"
    return None
