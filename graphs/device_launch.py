"""Launching graphs from a kernel: the whole shim, without C++.

``cudaGraphLaunch`` of the device runtime (``libcudadevrt.a``) takes a graph executable's handle
and one of three named streams. Rules that the caller lives by (CUDA Programming Guide, "Device
graph launch"): the kernel itself runs in a graph instantiated for device launch and uploaded;
at most 120 fire-and-forget launches an execution of that graph, a total that completions do
not give back; one pending tail launch of itself, which begins a new execution.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from llvmlite import ir

from graphs._cuda import cuda, intrinsic, types

FIRE_AND_FORGET_STREAM = 0x0200000000000000
TAIL_STREAM = 0x0100000000000000

_I64 = ir.IntType(64)


@cache
def device_runtime_library() -> str:
    """Path of ``libcudadevrt.a``: from the ``nvidia-cuda-runtime`` wheel, or a CUDA toolkit.

    Raises
    ------
    FileNotFoundError
        When there is neither.
    """
    from cuda import pathfinder

    locate = getattr(pathfinder, "locate_static_lib", None)
    if locate is not None:
        try:
            return str(locate("cudadevrt").abs_path)
        except RuntimeError:
            pass  # the toolkit may still have it
    import nvidia

    folders = [Path(folder) / "cu13" / "lib" for folder in nvidia.__path__]
    folders += [Path(folder) / "cuda_runtime" / "lib" for folder in nvidia.__path__]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            folders.append(Path(os.environ[variable]) / "lib64")
    folders.append(Path("/usr/local/cuda/lib64"))
    for folder in folders:
        if (folder / "libcudadevrt.a").is_file():
            return str(folder / "libcudadevrt.a")
    raise FileNotFoundError(
        "libcudadevrt.a is needed to launch graphs from the GPU and was not found: "
        "install nvidia-cuda-runtime, or set CUDA_HOME to a CUDA 13 toolkit"
    )


_graph_launch = cuda.declare_device(
    "cudaGraphLaunch", types.int32(types.uint64, types.uint64), link=device_runtime_library(), abi="c"
)
_graph_set_conditional = cuda.declare_device(
    "cudaGraphSetConditional", types.void(types.uint64, types.uint32), link=device_runtime_library(), abi="c"
)


@intrinsic
def current_graph_exec(typingctx):
    """Handle of the graph executable this kernel runs in (int64), 0 outside a device graph."""

    def codegen(context, builder, signature, args):
        asm = ir.InlineAsm(
            ir.FunctionType(_I64, []), "mov.u64 $0, %current_graph_exec;", "=l,~{memory}", side_effect=True
        )
        return builder.call(asm, [])

    return types.int64(), codegen


@cuda.jit(device=True)
def launch_fire_and_forget(exec_handle):
    """Launch a graph beside this kernel. Returns CUDA's error code, 0 for success (int64).

    1 (``cudaErrorInvalidValue``): the window of 120 is used up, or the executable still runs.
    """
    return types.int64(_graph_launch(types.uint64(exec_handle), types.uint64(FIRE_AND_FORGET_STREAM)))


@cuda.jit(device=True)
def tail_launch(exec_handle):
    """Launch a graph once this graph and all it launched have ended. Returns the error code (int64)."""
    return types.int64(_graph_launch(types.uint64(exec_handle), types.uint64(TAIL_STREAM)))


@cuda.jit(device=True)
def tail_launch_self():
    """Run this graph again once it and all it launched have ended. Returns the error code (int64)."""
    return tail_launch(current_graph_exec())


@cuda.jit(device=True)
def set_conditional(handle, value):
    """Set a conditional node's handle: loop on (non-zero) for WHILE, the branch for SWITCH."""
    _graph_set_conditional(types.uint64(handle), types.uint32(value))
