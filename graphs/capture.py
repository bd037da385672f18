"""From an engine's kernels to executables: capture, check, instantiate, upload.

Every shape of the grid (`graphs.grid.shapes`) is captured once and instantiated twice
(`EXECS`), to be launched in turn: an executable cannot be launched again right after its last
kernel's flag was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numba.cuda.dispatcher import _Kernel  # there is no public way to compile and not to load

from graphs._cuda import CudaError, check, cuda, driver
from graphs.grid import DECODE, EXECS, make_table, shapes
from graphs.nodes import check_device_launchable
from graphs.step_io import EngineSpec

_DEVICE_LAUNCH = int(driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)


class Capturable(Protocol):
    """What is captured: an engine that enqueues a step of any of its shapes on a stream."""

    @property
    def spec(self) -> EngineSpec: ...

    def enqueue(self, kind: int, shape: int, stream: Any) -> None:
        """Enqueue a whole step, its release of DONE last. Allocates nothing."""
        ...


def capture(enqueue: Callable[[], None], stream, name: str):
    """Capture what `enqueue` puts on `stream`.

    Parameters
    ----------
    enqueue : callable
        Launches kernels on `stream` and on no other; every kernel was launched before (loading
        code is not allowed while a scheduler is resident).
    stream
        A stream of `graphs._cuda.new_stream`.
    name : str
        For errors.

    Returns
    -------
    CUgraph

    Raises
    ------
    CudaError
        When something that cannot be captured was enqueued.
    """
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    check(driver.cuStreamBeginCapture(int(stream), mode), f"beginning the capture of {name}")
    try:
        enqueue()
    except BaseException:
        driver.cuStreamEndCapture(int(stream))  # leaves the stream usable; the cause is raised
        raise
    return check(driver.cuStreamEndCapture(int(stream)), f"capturing {name}")


def compile_kernel(kernel, *arguments: Any) -> None:
    """Compile and link a kernel for arguments of these types, without loading it.

    All of it on the CPU, so that it may go on beside a resident kernel; `load_kernel` then only loads.
    """
    types_of = tuple(kernel.typeof_pyval(argument) for argument in arguments)
    # what the dispatcher does to compile, less its last act, which loads
    compiled = _Kernel(kernel.py_func, types_of, **kernel.targetoptions)
    compiled._codelibrary.get_cubin()
    kernel.add_overload(compiled, types_of)


def load_kernel(kernel, *arguments: Any) -> None:
    """Compile (unless it is) and load a kernel for arguments of these types, without launching it.

    For kernels that cannot run outside their graph. Loading allocates and synchronises: not
    allowed while capturing, a deadlock beside a resident kernel.
    """
    kernel.compile(tuple(kernel.typeof_pyval(argument) for argument in arguments)).bind()


def allow_shared_memory(kernel, size: int) -> None:
    """Let a loaded kernel have `size` bytes of dynamic shared memory: beyond 48 KiB it must be asked for."""
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    device = cuda.get_current_device().id
    for compiled in kernel.overloads.values():
        handle = compiled._codelibrary.get_cufunc().handle
        check(driver.cuKernelSetAttribute(attribute, size, handle, device), "asking for shared memory")


def instantiate(graph, stream, name: str, *, device_launch: bool):
    """An executable of a graph, on the device and ready.

    Parameters
    ----------
    device_launch : bool
        Whether kernels may launch it; its nodes are checked first. The host may launch either kind.

    Returns
    -------
    CUgraphExec
        ``int(executable)`` is the handle that kernels take.
    """
    if device_launch:
        check_device_launchable(graph, name)
    flags = _DEVICE_LAUNCH if device_launch else 0
    executable = check(driver.cuGraphInstantiate(graph, flags), f"instantiating graph {name}")
    try:
        check(driver.cuGraphUpload(executable, int(stream)), f"uploading graph {name}")
    except CudaError:
        driver.cuGraphExecDestroy(executable)
        raise
    return executable


class GraphSet:
    """All executables of an engine, in the order of the graph table.

    Parameters
    ----------
    engine : Capturable
    stream
        Used to capture and upload; idle when the constructor returns.
    device_launch : bool
        Instantiate for launches by a kernel (the default) or by the host.

    Attributes
    ----------
    executables : list of CUgraphExec
        ``EXECS`` for each graph; index ``EXECS * graph + turn``.
    handles : list of int
        Their handles, as `graphs.grid.make_table` takes them.
    node_counts : list of int
        Nodes of each graph.
    """

    def __init__(self, engine: Capturable, stream, *, device_launch: bool = True) -> None:
        self.spec = engine.spec
        self.executables: list[Any] = []
        self.node_counts: list[int] = []
        try:
            for kind, shape in shapes(engine.spec):
                self._add(engine, kind, shape, stream, device_launch)
            check(driver.cuStreamSynchronize(int(stream)), "uploading graphs")
        except BaseException:
            self.close()
            raise
        self.handles = [int(executable) for executable in self.executables]

    def _add(self, engine: Capturable, kind: int, shape: int, stream, device_launch: bool) -> None:
        name = f"{'decode' if kind == DECODE else 'prefill'} {shape}"
        graph = capture(lambda: engine.enqueue(kind, shape, stream), stream, name)
        try:
            self.node_counts.append(check(driver.cuGraphGetNodes(graph, 0), f"counting nodes of {name}")[1])
            for _ in range(EXECS):
                self.executables.append(instantiate(graph, stream, name, device_launch=device_launch))
        finally:
            driver.cuGraphDestroy(graph)  # executables keep what they need

    def table(self) -> np.ndarray:
        """Words of the graph table with these executables' handles."""
        return make_table(self.spec, self.handles)

    def launch(self, graph: int, turn: int, stream) -> None:
        """Launch an executable from the host."""
        executable = self.executables[EXECS * graph + turn]
        check(driver.cuGraphLaunch(executable, int(stream)), f"launching graph {graph}")

    def close(self) -> None:
        """Destroy the executables. None may be running or launched again."""
        for executable in self.executables:
            driver.cuGraphExecDestroy(executable)
        self.executables = []
