"""The device-launch shim without a GPU: compiles, links, and polls inside the loop."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.bindings", reason="needs the CUDA bindings")
pytest.importorskip("numba.cuda.dispatcher", reason="needs the numba-cuda target")

from graphs import device_launch
from graphs._cuda import cuda, types
from ring.atomics import load_acquire
from tests.cuda_compile import compile_kernel, link_with_device_runtime, loops_with

WORDS = types.int64[::1]


@cuda.jit
def launch_and_wait(words, handles):
    """Everything a scheduler does with the shim, in miniature."""
    if cuda.threadIdx.x == 0:
        words[0] = device_launch.launch_fire_and_forget(handles[0])
        while load_acquire(words, 8) != 1:
            pass
        words[1] = device_launch.tail_launch_self()
        words[2] = device_launch.tail_launch(handles[1])
        device_launch.set_conditional(handles[2], 1)


@cuda.jit
def poll_with_a_plain_load(words):
    while words[8] != 1:
        pass
    words[0] = 1


@pytest.fixture(scope="module")
def ptx() -> str:
    return compile_kernel(launch_and_wait, (WORDS, WORDS))


def test_links_with_the_device_runtime():
    cubin = link_with_device_runtime(compile_kernel(launch_and_wait, (WORDS, WORDS), "ltoir"))
    assert cubin.startswith(b"\x7fELF")


def test_launches_name_their_streams(ptx):
    assert ptx.count("%current_graph_exec") == 1
    for stream in (device_launch.FIRE_AND_FORGET_STREAM, device_launch.TAIL_STREAM):
        assert str(stream) in ptx


def test_polling_load_stays_in_its_loop(ptx):
    assert loops_with(ptx, "ld.acquire.sys.global.b64") == 1


def test_a_plain_load_would_leave_its_loop():
    """The check can fail: the compiler does hoist a load that it may."""
    assert loops_with(compile_kernel(poll_with_a_plain_load, (WORDS,)), "ld.global") == 0


def test_shim_says_what_is_missing(monkeypatch, tmp_path):
    from cuda import pathfinder

    def not_found(name):
        raise RuntimeError(name)

    monkeypatch.setattr(pathfinder, "locate_static_lib", not_found, raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(device_launch.Path, "is_file", lambda path: False)
    with pytest.raises(FileNotFoundError, match="install nvidia-cuda-runtime"):
        device_launch.device_runtime_library.__wrapped__()
