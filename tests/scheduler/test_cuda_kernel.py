"""The scheduler's kernels compile for sm_90 from the same source, link with the device runtime, and poll."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("numba.cuda.dispatcher", reason="needs the numba-cuda target")

from numba.core import types as t

from scheduler.loops.cuda import make_kernel
from scheduler.policies import find
from tests.cuda_compile import compile_kernel, link_with_device_runtime, loops_with, resources

WORDS = t.int64[::1]
SIGNATURE = (WORDS, t.int32[::1], WORDS, WORDS, WORDS, WORDS)


@cache
def ptx_of(strategy: str) -> str:
    return compile_kernel(make_kernel(find("fcfs"), strategy), SIGNATURE)


@pytest.mark.parametrize(("strategy", "spills"), [("faf", 0), ("tail", 160), ("while", 160)])
def test_kernel_compiles_without_spills(strategy: str, spills: int) -> None:
    """None in the resident kernel: each is a trip to memory in its serial part. A handful in the others."""
    used = resources(ptx_of(strategy))
    assert used["spills"] <= spills
    assert used["registers"] * 256 <= 65_536, "one block of 256 lanes must fit an SM"


def test_polling_loads_are_in_their_loop_and_not_hoisted() -> None:
    ptx = ptx_of("faf")
    # the completion flag at each look, the doorbells at each scan
    assert loops_with(ptx, "ld.acquire.sys.global.b64") >= 1
    assert loops_with(ptx, "ld.relaxed.sys.b64") >= 1


def test_links_with_the_device_runtime() -> None:
    link_with_device_runtime(compile_kernel(make_kernel(find("fcfs"), "faf"), SIGNATURE, output="ltoir"))
