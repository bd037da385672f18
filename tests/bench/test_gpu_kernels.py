"""The kernels of the GPU benches compile for sm_90, link, and poll inside their loops."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.bindings", reason="needs the CUDA bindings")
pytest.importorskip("numba.cuda.dispatcher", reason="needs the numba-cuda target")

from numba.core import types as t

from blink_numba.bench import launch_kernels, null_engine, scan_kernels
from graphs._cuda import cuda
from tests.cuda_compile import compile_kernel, link_with_device_runtime, loops_with, resources

WORDS, NARROW = t.int64[::1], t.int32[::1]
DEVICE = (WORDS,) * 5

LAUNCHING = {
    "fire_and_forget": (launch_kernels.fire_and_forget, (*DEVICE, WORDS)),
    "tail_relaunch": (launch_kernels.tail_relaunch, (WORDS, WORDS)),
    "tail_pair": (launch_kernels.tail_pair, DEVICE),
    "while_loop": (launch_kernels.while_loop, (WORDS, WORDS, t.int64)),
    "while_switch": (launch_kernels.while_switch, (WORDS, WORDS, WORDS, t.int64, t.int64)),
}
STEPS = {
    "null_decode": (null_engine.null_decode, (*(WORDS,) * 4, t.int64, t.int64, WORDS, t.int64, t.int64)),
    "null_prefill": (null_engine.null_prefill, (*(WORDS,) * 6, t.int64, WORDS, t.int64)),
    "scan": (scan_kernels.scan_loop, (WORDS, NARROW, WORDS, t.int64, WORDS)),
}


@pytest.mark.parametrize("name", LAUNCHING)
def test_launching_kernels_link_with_the_device_runtime(name):
    kernel, signature = LAUNCHING[name]
    assert link_with_device_runtime(compile_kernel(kernel, signature, "ltoir")).startswith(b"\x7fELF")


def test_completion_is_polled_inside_a_loop():
    @cuda.jit
    def wait_only(control, out):
        out[0] = launch_kernels.await_done(control, 1)

    assert loops_with(compile_kernel(wait_only, (WORDS, WORDS)), "ld.acquire.gpu.global.b64") == 1


@pytest.mark.parametrize("name", STEPS)
def test_steps_and_scan_need_no_local_memory(name):
    kernel, signature = STEPS[name]
    used = resources(compile_kernel(kernel, signature))
    assert (used["stack"], used["spills"]) == (0, 0)


def test_scan_loads_relaxed_inside_its_loop():
    kernel, signature = STEPS["scan"]
    assert loops_with(compile_kernel(kernel, signature), "ld.relaxed.sys.b64") >= 2
