"""Host launches from compiled code: the driver's own functions, called without the interpreter.

For the host launch strategies: the scheduler runs on a CPU thread that holds no GIL and
launches the same graphs. The driver's library is opened first (`load_driver`), then these
functions link against it. All return the driver's error code as int64, 0 for success.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import llvmlite.binding
import numpy as np
from numba import types
from numba.extending import overload

from graphs._cuda import CudaError, check, driver
from graphs.launcher import launch
from ring.jit import njit

_LIBRARY = "libcuda.so.1"
NOT_READY = 600  # CUDA_ERROR_NOT_READY
L_WINDOW, L_STREAM, L_CONTEXT = 0, 1, 2  # words of a host launcher's core

_graph_launch = types.ExternalFunction("cuGraphLaunch", types.int32(types.intp, types.intp))
_stream_synchronize = types.ExternalFunction("cuStreamSynchronize", types.int32(types.intp))
_stream_query = types.ExternalFunction("cuStreamQuery", types.int32(types.intp))
_set_current = types.ExternalFunction("cuCtxSetCurrent", types.int32(types.intp))


def load_driver() -> None:
    """Make the CUDA driver's functions known to the JIT; `CudaError` where there is no driver."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise CudaError(f"{_LIBRARY}: {error}; host launches need an NVIDIA driver") from error
    llvmlite.binding.load_library_permanently(_LIBRARY)


def current_context() -> int:
    """Handle of the calling thread's CUDA context, for `use_context` on another thread."""
    return int(check(driver.cuCtxGetCurrent(), "reading the current context"))


@njit
def use_context(context):
    """Make a context current on this thread; before any launch from it."""
    return types.int64(_set_current(context))


@njit
def launch_from_host(executable, stream):
    """Enqueue a graph executable on a stream."""
    return types.int64(_graph_launch(executable, stream))


class HostLauncher(NamedTuple):
    """Launch from a scheduler on the CPU, on the stream whose handle is word `L_STREAM` of `core`."""

    core: np.ndarray


class HostPipelined(NamedTuple):
    """As `HostLauncher`, for a scheduler that launches a decode step behind the one in flight.

    The driver runs the launches of a stream in order, and may be handed one while another runs.
    """

    core: np.ndarray

    AHEAD = True


@overload(launch)
def _launch_from_cpu_scheduler(launcher, table, executable):
    if getattr(launcher, "instance_class", None) not in (HostLauncher, HostPipelined):
        return None
    return lambda launcher, table, executable: launch_from_host(
        table.handle[executable], launcher.core[L_STREAM]
    )


@njit
def synchronize(stream):
    """Wait until a stream has done everything."""
    return types.int64(_stream_synchronize(stream))


@njit
def query(stream):
    """0 if a stream has done everything, `NOT_READY` if not."""
    return types.int64(_stream_query(stream))
