"""The CUDA backend: the scheduler is a kernel, the host provisions and then looks."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from blink_numba.engines.cuda import CudaEngine
from blink_numba.engines.limits import EngineLimits
from blink_numba.models import Model
from blink_numba.runtime.config import EngineConfig
from blink_numba.runtime.gpu_memory import DEFAULT_UTILIZATION, Workload, kv_tokens
from graphs._cuda import CudaError, check, cuda, driver, new_stream
from graphs.capture import (
    GraphSet,
    allow_shared_memory,
    capture,
    compile_kernel,
    instantiate,
    load_kernel,
)
from graphs.conditional import instantiate_while
from graphs.grid import shapes
from graphs.step_io import EngineSpec, format_step, step_view, step_words
from graphs.strategies import CORE_WORDS, DEVICE_STRATEGIES, L_LOOP, L_SWITCH
from ring import layout as at
from ring.layout import RingGeometry
from ring.views import RingView, format_ring, host_view
from scheduler import state as sc
from scheduler.build import combine, set_up
from scheduler.policy import Policy, install, named_policy, preload
from scheduler.recovery import abandon

DEFAULT_SEATS = 64
DEFAULT_PREFILL_TOKENS = 2048
POLL_SPINS = 256  # looks at the completion flag between two scans: about 100 µs
_NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY


class Registered:
    """Host memory that the GPU reads and writes over the bus, as device arrays.

    Parameters
    ----------
    words : int64[n]
        Page-aligned memory, such as a mapped ring file.
    """

    def __init__(self, words: np.ndarray) -> None:
        self._address = words.ctypes.data
        self._owner = words  # keeps the mapping
        flags = driver.CU_MEMHOSTREGISTER_DEVICEMAP
        check(
            driver.cuMemHostRegister(self._address, words.nbytes, flags), "registering the ring with the GPU"
        )
        self._pointer = int(check(driver.cuMemHostGetDevicePointer(self._address, 0), "mapping the ring"))
        self.words = _device_array(self._pointer, words.shape[0], "<i8")
        self.narrow = _device_array(self._pointer, 2 * words.shape[0], "<i4")

    def close(self) -> None:
        """Unregister; no kernel uses it any more."""
        driver.cuMemHostUnregister(self._address)


def _device_array(pointer: int, length: int, kind: str) -> Any:
    holder: Any = type("DevicePointer", (), {})()
    holder.__cuda_array_interface__ = {
        "shape": (length,), "typestr": kind, "data": (pointer, False), "version": 3,
    }  # fmt: skip
    return cuda.as_cuda_array(holder)


class CudaBackend:
    """Engine, graphs, scheduler kernel and its state on the GPU.

    Parameters
    ----------
    model : Model
    config : EngineConfig
    policy : Policy
    progress : callable
        Takes a line of text at each stage of the preparation.

    Attributes
    ----------
    spec : EngineSpec
    name : str

    Notes
    -----
    Everything is allocated, compiled, loaded and run once before the scheduler starts: while
    it is resident, loading a module or freeing memory would wait for it for ever.
    """

    name = "cuda"

    def __init__(
        self, model: Model, config: EngineConfig, policy: Policy, progress: Callable[[str], None]
    ) -> None:
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # read when the driver starts
        self._config = config
        self._policy = policy
        self._stream = new_stream()
        progress(f"loading {model.name} onto the GPU and compiling its kernels")
        self.engine = self._make_engine(model, engine_limits(model, config))
        self.spec: EngineSpec = self.engine.spec
        progress(f"capturing {len(shapes(self.spec))} graphs")
        self.graphs = GraphSet(self.engine, self._stream, device_launch=config.launch != "while")
        self._table = cuda.to_device(self.graphs.table())
        self._launcher = cuda.to_device(np.zeros(CORE_WORDS, np.int64))
        progress(f"compiling the scheduler kernel (policy {policy.name}, launches {config.launch})")
        self._preloaded = [named_policy(name) for name in config.preload]
        self._kernel: Any = self._make_kernel(policy)
        self._prepared: Any = self._kernel
        self._warm_up()
        self._state: Any = None
        self._host_state: np.ndarray | None = None
        self._ring: Registered | None = None
        self._view: RingView | None = None
        self._executable: Any = None
        self._sticky: str | None = None
        self._cleanup = ExitStack()

    def _make_engine(self, model: Model, limits: EngineLimits) -> Any:
        """What the scheduler launches; another engine's backend says another one here."""
        return CudaEngine(model, limits, batch_invariant=self._config.batch_invariant)

    def _place_ring(self, words: np.ndarray) -> Registered:
        """Where the scheduler finds the ring; a backend of a ring in GPU memory has another place."""
        return Registered(words)

    def _make_kernel(self, policy: Policy) -> Callable:
        from scheduler.loops.cuda import make_kernel

        if self._config.launch not in DEVICE_STRATEGIES:
            raise ValueError(
                f"launch strategy {self._config.launch!r} is not one of {', '.join(DEVICE_STRATEGIES)}"
            )
        return make_kernel(combine(self._presets(policy), policy.name), self._config.launch)

    def _presets(self, policy: Policy) -> list[Policy]:
        """A policy and those preloaded beside it: what one kernel is made of."""
        return [policy, *(other for other in self._preloaded if other.name != policy.name)]

    def _warm_up(self) -> None:
        """Load the scheduler kernel: run it on a small ring that already says stop.

        In a graph: a kernel that launches graphs cannot be launched any other way.
        """
        geometry = RingGeometry(slots=32, arena_tokens=64, log_entries=2, flight_entries=2)
        words = np.zeros(geometry.words(), np.int64)
        format_ring(words, geometry)
        host_view(words).command[at.C_STOP] = at.STOP
        state = sc.make_state(self.spec, geometry)
        scratch = np.zeros(step_words(self.spec), np.int64)
        format_step(scratch, self.spec)
        ring, device_state, io = cuda.to_device(words), cuda.to_device(state), cuda.to_device(scratch)
        self._reserve_shared(state, ring, ring.view(np.int32), device_state, io)
        cuda.default_stream().synchronize()
        if self._config.launch == "while":
            return  # its conditional handles exist only in the loop's own graph, which loads it
        graph = capture(
            lambda: self._launch_kernel(ring, ring.view(np.int32), device_state, io),
            self._stream,
            "scheduler",
        )
        executable = instantiate(graph, self._stream, "scheduler", device_launch=True)
        check(driver.cuGraphLaunch(executable, int(self._stream)), "trying the scheduler")
        self._stream.synchronize()
        driver.cuGraphExecDestroy(executable)
        driver.cuGraphDestroy(graph)

    def _launch_kernel(self, words: Any, narrow: Any, state: Any, io: Any) -> None:
        from scheduler.loops.cuda import LANES

        arguments = (words, narrow, state, io, self._table, self._launcher)
        self._kernel[1, LANES, self._stream, self._shared](*arguments)

    def _reserve_shared(self, host_state: np.ndarray, *arguments: Any) -> None:
        """Load the scheduler kernel and let it have the shared memory that a state asks for."""
        from scheduler.loops.cuda import shared_bytes

        self._shared = 0
        load_kernel(self._kernel, *arguments, self._table, self._launcher)
        if self._config.launch == "faf":
            limit = int(cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            self._shared = shared_bytes(host_state, len(shapes(self.spec)), limit)
            allow_shared_memory(self._kernel, self._shared)

    # --- the scheduler's life ---

    def new_state(self, geometry: RingGeometry, placement: int) -> np.ndarray:
        """A fresh scheduler state in host memory; `start` takes what it then holds to the GPU."""
        self._host_state = sc.make_state(
            self.spec,
            geometry,
            placement=placement,
            step_deadline_s=self._config.step_deadline_s,
            poll_spins=POLL_SPINS,
        )
        set_up(self._host_state, self._policy, self._presets(self._policy))
        return self._host_state

    def start(self, words: np.ndarray, ring: RingView) -> None:
        """Register the ring, capture the scheduler over it, and let it go."""
        assert self._host_state is not None
        self._view = ring
        self._ring = self._place_ring(words)
        self._state = cuda.to_device(self._host_state)
        self._reserve_shared(
            self._host_state, self._ring.words, self._ring.narrow, self._state, self.engine.io
        )
        self._executable = self._capture_scheduler()
        self._cleanup.enter_context(settled())
        self._launch()

    def _capture_scheduler(self) -> Any:
        ring, io = self._ring, self.engine.io
        assert ring is not None

        def enqueue() -> None:
            self._launch_kernel(ring.words, ring.narrow, self._state, io)

        if self._config.launch == "while":
            return self._capture_loop(enqueue)
        graph = capture(enqueue, self._stream, "scheduler")
        executable = instantiate(graph, self._stream, "scheduler", device_launch=True)
        self._stream.synchronize()
        return executable

    def _capture_loop(self, enqueue: Callable[[], None]) -> Any:
        core = np.zeros(CORE_WORDS, np.int64)

        def scheduler(loop: int, switch: int) -> None:
            core[L_LOOP], core[L_SWITCH] = loop, switch
            enqueue()

        branches = [
            (lambda kind=kind, shape=shape: self.engine.enqueue(kind, shape, self._stream))
            for kind, shape in shapes(self.spec)
        ]
        executable = instantiate_while(scheduler, branches, self._stream)
        self._launcher.copy_to_device(core)
        return executable

    def _launch(self) -> None:
        assert self._view is not None
        self._view.status[at.S_PHASE] = at.PHASE_RUNNING
        check(driver.cuGraphLaunch(self._executable, int(self._stream)), "starting the scheduler")

    def verdict(self) -> int | None:
        """Why the scheduler ended, None while it is resident."""
        (code,) = driver.cuStreamQuery(int(self._stream))
        assert self._view is not None
        phase = int(self._view.status[at.S_PHASE])
        if code == _NOT_READY:  # a step that hangs keeps the stream busy after the scheduler gave up
            return sc.FAULTED if phase == at.PHASE_FAULTED else None
        if code != driver.CUresult.CUDA_SUCCESS:
            self._sticky = code.name
            return sc.FAULTED
        if phase == at.PHASE_STOPPED:
            return sc.STOPPED
        return sc.PARKED if phase == at.PHASE_PARKED else sc.FAULTED

    def explain(self) -> str | None:
        """The CUDA error that ended the context, None if the context lives."""
        return self._sticky

    def restart(self, deadline_s: float) -> bool:
        """Go on after a fault, in place. False after a sticky CUDA error: the context is gone."""
        if self._sticky is not None or not self.join(deadline_s):
            return False
        try:
            words = self._state.copy_to_host()
            io = self.engine.io.copy_to_host()
            abandon(sc.state_view(words), step_view(io))
            self._state.copy_to_device(words)
            self.engine.io.copy_to_device(io)
            self._launch()
        except CudaError as error:
            self._sticky = str(error)
            return False
        return True

    def prepare(self, policy: Policy) -> None:
        """Compile the kernel of a policy and those preloaded, beside the one that runs; for `resume`."""
        assert self._ring is not None
        kernel = self._make_kernel(policy)
        arguments = (self._ring.words, self._ring.narrow, self._state, self.engine.io)
        compile_kernel(kernel, *arguments, self._table, self._launcher)
        self._prepared = kernel

    def resume(self, policy: Policy) -> None:
        """Run the scheduler again after it parked, as the kernel that `prepare` made of this policy.

        It stands still while the kernel is loaded: that is impossible beside it.
        """
        assert self._ring is not None
        words = self._state.copy_to_host()
        state = sc.state_view(words)
        preload(state, self._presets(policy))
        install(state, policy)
        self._state.copy_to_device(words)
        self._policy, self._kernel = policy, self._prepared
        self._reserve_shared(words, self._ring.words, self._ring.narrow, self._state, self.engine.io)
        driver.cuGraphExecDestroy(self._executable)
        self._executable = self._capture_scheduler()
        self._launch()

    def join(self, deadline_s: float) -> bool:
        """Wait for the scheduler to end. Whether it did."""
        give_up = time.monotonic() + deadline_s
        while driver.cuStreamQuery(int(self._stream))[0] == _NOT_READY:
            if time.monotonic() >= give_up:
                return False
            time.sleep(0.002)
        return True

    def read_state(self) -> np.ndarray:
        """A copy of the scheduler's state; only while it does not run."""
        return self._state.copy_to_host()

    def close(self) -> None:
        """Free what the GPU holds; the scheduler has ended (else the process must end first)."""
        if self._ring is not None and self.join(0.0):
            self._cleanup.close()
            if self._executable is not None:
                driver.cuGraphExecDestroy(self._executable)
            self.graphs.close()
            self._ring.close()
            self._ring = None


@contextmanager
def settled() -> Iterator[None]:
    """No memory is freed in here: a free would wait for the resident scheduler, for ever.

    What is garbage already is freed first.
    """
    gc.collect()
    cuda.current_context().deallocations.clear()
    with cuda.defer_cleanup():
        yield


def engine_limits(model: Model, config: EngineConfig) -> EngineLimits:
    """What a configuration asks of an engine on the GPU.

    Raises
    ------
    ValueError
        The part of the GPU's memory that the engine may use leaves none for a KV cache.
    """
    limits = EngineLimits(
        seats=config.max_seats or DEFAULT_SEATS,
        max_model_len=config.max_model_len,
        prefill_tokens=config.prefill_tokens or DEFAULT_PREFILL_TOKENS,
        block_size=config.block_size,
    )
    tokens = config.kv_tokens
    if tokens is None:
        tokens = default_kv_tokens(model, limits, config.gpu_memory_utilization or DEFAULT_UTILIZATION)
    return replace(limits, kv_tokens=tokens)


def default_kv_tokens(model: Model, limits: EngineLimits, utilization: float) -> int:
    """Tokens of a KV cache that takes what weights and activations leave; see `gpu_memory.kv_tokens`."""
    workload = Workload(
        limits.seats, limits.prefill_tokens, limits.prefill_sequences, limits.block_size,
        limits.max_model_len or model.config.max_position,
    )  # fmt: skip
    cuda.current_context()
    free, total = check(driver.cuMemGetInfo(), "reading the free memory")
    return kv_tokens(model.config, workload, total=total, free=free, utilization=utilization)
