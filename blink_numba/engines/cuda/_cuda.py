"""The one place of this package that imports the Numba CUDA target (its successor has the same API)."""

from numba import types
from numba.cuda.extending import intrinsic

from numba import cuda

__all__ = ["cuda", "intrinsic", "types"]
