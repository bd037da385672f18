"""The arithmetic kernels, compiled on their own and called through pointers.

Numba optimises a function again in each of its callers, all the way up: inlined, these kernels
would be compiled a dozen times over. A pointer ends that (a third less time to compile the step),
and a call costs 60 ns against the microseconds of a kernel.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from numba import cfunc, types
from numba.core.ccallback import CFunc

from blink_numba.engines.cpu.attention import attend
from blink_numba.engines.cpu.matmul import expand_panel, multiply_panel
from blink_numba.engines.cpu.sample import sample_row
from ring.jit import CACHING

_INT = types.int64
_BYTES = types.Array(types.uint8, 1, "C")
_FLOATS = types.Array(types.float32, 1, "C")
_WORDS = types.Array(types.int64, 1, "C")


class Kernels(NamedTuple):
    """Pointers to the compiled kernels of the same names."""

    multiply_panel: CFunc
    expand_panel: CFunc
    attend: CFunc
    sample_row: CFunc


_SIGNATURES = {
    multiply_panel: types.void(_INT, _INT, _BYTES, _INT, _INT, _FLOATS, _INT, _FLOATS),
    expand_panel: types.void(_INT, _BYTES, _INT, _INT, _BYTES),
    attend: types.void(
        _FLOATS, _FLOATS, _INT, _INT, _INT, _WORDS, _INT, _FLOATS, _INT, _INT, _INT, _FLOATS, _INT
    ),
    sample_row: types.int64(
        _FLOATS, _INT, _INT, _WORDS, _WORDS, _INT, _INT, _WORDS, _FLOATS, _WORDS, _WORDS, _INT
    ),
}  # fmt: skip


@cache
def compiled_kernels() -> Kernels:
    """The kernels, compiled or loaded from the cache at the first call."""
    return Kernels(
        *(cfunc(signature, cache=CACHING, _nrt=False)(kernel) for kernel, signature in _SIGNATURES.items())
    )
