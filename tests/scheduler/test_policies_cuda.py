"""Every shipped policy, and one of the tests' own, compiles into a GPU kernel; presets too."""

from __future__ import annotations

import pytest

cuda = pytest.importorskip("numba.cuda")

from numba.core import types  # noqa: E402

from scheduler.build import combine  # noqa: E402
from scheduler.policies import shipped  # noqa: E402
from tests.cuda_compile import compile_kernel  # noqa: E402
from tests.lab.own_policy import OWN  # noqa: E402

WORDS = types.Array(types.int64, 1, "C")


def test_presets_are_one_set_of_device_functions_without_floating_point() -> None:
    together = combine([*shipped(), OWN])
    key, may_admit, prefill_or_decode, victim = together.functions

    @cuda.jit
    def kernel(words, out):
        lane = cuda.threadIdx.x
        out[0] = key(words, words, lane)
        out[1] = may_admit(words, words, lane)
        out[2] = prefill_or_decode(words, words)
        out[3] = victim(words, words, lane)

    ptx = compile_kernel(kernel, (WORDS, WORDS))
    body = [line for line in ptx.splitlines() if "\t" in line]
    assert not [line for line in body if ".f64" in line or ".f32" in line], (
        "keys are whole numbers on every target"
    )
    assert not [line for line in body if "malloc" in line]
