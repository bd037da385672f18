"""The one place of this package that imports the Numba CUDA target (its successor has the same API).

The names are typed `Any`: what they do to Python functions is beyond a type checker.
"""

from typing import Any

import numba.cuda
import numba.cuda.extending
import numba.cuda.libdevice

cuda: Any = numba.cuda
intrinsic: Any = numba.cuda.extending.intrinsic
libdevice: Any = numba.cuda.libdevice
types: Any = numba.types

__all__ = ["cuda", "intrinsic", "libdevice", "types"]
