"""Runs a CUDA kernel's Python source without a GPU: every thread a greenlet, in lockstep.

The kernel's functions are rebuilt over stand-ins for `cuda`, `ptx`, `libdevice` and Numba's
types. A thread runs until it reaches something collective (barrier, shuffle, matrix
instruction); when all that take part are there, it happens and they go on. What it checks is
the kernel's logic: indices, fragment layouts, reductions, who waits for what. Asynchronous
copies land only when waited for; global addresses are checked against the arguments; local
and shared memory start as garbage. It says nothing about races, compiled code or speed.
"""

from __future__ import annotations

import ctypes
import math
import sys
import types as python_types
from types import SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet
from numba.core import types as numba_types
from numba.core.dispatcher import Dispatcher
from numba.cuda.dispatcher import CUDADispatcher
from numba.extending import is_jitted

WARP = 32
SHARED_BYTES = 48 * 1024
_GARBAGE = np.random.default_rng(7)


def run_kernel(kernel, grid, block, arguments) -> None:
    """Run ``kernel[grid, block](*arguments)`` over NumPy arrays, block after block."""
    grid, block = _three(grid), _three(block)
    function = _Rebuilder().rebuild(kernel.py_func)
    spans = [_span(array) for array in arguments if isinstance(array, np.ndarray)]
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                _Block(function, arguments, (x, y, z), grid, block, spans).run()


def _three(shape) -> tuple[int, int, int]:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return shape + (1,) * (3 - len(shape))


def _span(array: np.ndarray) -> tuple[int, int]:
    return array.ctypes.data, array.ctypes.data + array.nbytes


class _Thread(greenlet):
    """A thread of the block: its index, its copies under way."""

    def __init__(self, block: _Block, index: int) -> None:
        super().__init__(lambda: block.function(*block.arguments))
        width, height, _ = block.shape
        self.block, self.index = block, index
        self.at = SimpleNamespace(x=index % width, y=index // width % height, z=index // (width * height))
        self.copies: list = []
        self.groups: list[list] = []
        self.waiting: tuple | None = None


class _Block:
    """A block of threads with its shared memory."""

    def __init__(self, function, arguments, at, grid, shape, spans) -> None:
        self.function, self.arguments, self.shape, self.spans = function, arguments, shape, spans
        self.at, self.grid = (
            SimpleNamespace(**dict(zip("xyz", at))),
            SimpleNamespace(**dict(zip("xyz", grid))),
        )
        self.shared = _GARBAGE.integers(0, 256, SHARED_BYTES, dtype=np.uint8)
        self.shared_used = 0
        self.shared_arrays: dict = {}
        self.threads = [_Thread(self, index) for index in range(math.prod(shape))]

    def run(self) -> None:
        ready = dict.fromkeys(self.threads)
        while ready:
            for thread, value in ready.items():
                thread.waiting = thread.switch() if value is None else thread.switch(value[0])
                if thread.dead:
                    thread.waiting = None
            ready = self._release()
        stuck = [thread.index for thread in self.threads if not thread.dead]
        assert not stuck, f"threads {stuck} wait for ever at {self.threads[stuck[0]].waiting}"

    def _release(self) -> dict:
        """Let happen what all its threads have come to; their results."""
        alive = [thread for thread in self.threads if not thread.dead]
        if alive and all(thread.waiting and thread.waiting[0] == "barrier" for thread in alive):
            return dict.fromkeys(alive, (None,))
        released: dict = {}
        for first in range(0, len(self.threads), WARP):
            warp = self.threads[first : first + WARP]
            kinds = {thread.waiting[0] if thread.waiting else None for thread in warp}
            if len(kinds) == 1 and None not in kinds and "barrier" not in kinds:
                results = _COLLECTIVES[warp[0].waiting[0]](warp)
                released.update({thread: (result,) for thread, result in zip(warp, results)})
        return released


def _collective(kind: str, *operands):
    """Wait for the other threads; the result of this one. A tuple, since None means none yet."""
    return getcurrent().parent.switch((kind, *operands))


# --- what warps do together ---


def _shuffle(warp):
    return [warp[int(thread.waiting[2]) % WARP].waiting[1] for thread in warp]


def _shuffle_xor(warp):
    return [warp[lane ^ thread.waiting[2]].waiting[1] for lane, thread in enumerate(warp)]


def _shuffle_down(warp):
    return [warp[min(lane + thread.waiting[2], WARP - 1)].waiting[1] for lane, thread in enumerate(warp)]


def _load_matrices(warp) -> np.ndarray:
    """uint16[4, 8, 8]: matrix m's row r is at the address that lane 8 m + r gave."""
    shared = warp[0].block.shared
    addresses = [thread.waiting[1] for thread in warp]
    assert all(address % 16 == 0 for address in addresses), "matrix rows must be 16-byte aligned"
    rows = [shared[address : address + 16].view(np.uint16) for address in addresses]
    return np.stack(rows).reshape(4, 8, 8)


def _distribute(matrices: np.ndarray) -> list:
    """Lane ``4 r + c`` holds elements 2c and 2c + 1 of row r of each matrix."""
    words = np.ascontiguousarray(matrices).view(np.uint32)
    return [tuple(int(words[m, lane // 4, lane % 4]) for m in range(4)) for lane in range(WARP)]


def _matrix_load(warp):
    return _distribute(_load_matrices(warp))


def _matrix_load_transposed(warp):
    return _distribute(_load_matrices(warp).transpose(0, 2, 1))


def _pair(word) -> np.ndarray:
    return (np.array([word & 0xFFFF, word >> 16], np.uint32) << 16).view(np.float32)


def _multiply_add(warp):
    a, b, c = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
    for lane, thread in enumerate(warp):
        group, column = lane // 4, 2 * (lane % 4)
        _, c0, c1, c2, c3, a0, a1, a2, a3, b0, b1 = thread.waiting
        c[group, column : column + 2] = c0, c1
        c[group + 8, column : column + 2] = c2, c3
        a[group, column : column + 2] = _pair(a0)
        a[group + 8, column : column + 2] = _pair(a1)
        a[group, column + 8 : column + 10] = _pair(a2)
        a[group + 8, column + 8 : column + 10] = _pair(a3)
        b[column : column + 2, group] = _pair(b0)
        b[column + 8 : column + 10, group] = _pair(b1)
    d = (c + a @ b).astype(np.float32)
    results = []
    for lane in range(WARP):
        group, column = lane // 4, 2 * (lane % 4)
        results.append(
            (d[group, column], d[group, column + 1], d[group + 8, column], d[group + 8, column + 1])
        )
    return results


_COLLECTIVES = {
    "shuffle": _shuffle,
    "shuffle_xor": _shuffle_xor,
    "shuffle_down": _shuffle_down,
    "matrix_load": _matrix_load,
    "matrix_load_transposed": _matrix_load_transposed,
    "multiply_add": _multiply_add,
}


# --- stand-ins ---


def _check_global(address: int, size: int) -> None:
    spans = getcurrent().block.spans
    assert any(first <= address and address + size <= after for first, after in spans), (
        f"{size} bytes at {address:#x} are outside every argument"
    )


def _copy_async(to, source, size) -> None:
    assert (int(to) | int(source)) % 16 == 0, "copies must be 16-byte aligned"
    if size:
        _check_global(int(source), int(size))
    getcurrent().copies.append((int(to), int(source), int(size)))


def _copy_commit() -> None:
    thread = getcurrent()
    thread.groups.append(thread.copies)
    thread.copies = []


def _copy_wait(pending: int):
    def wait() -> None:
        thread = getcurrent()
        while len(thread.groups) > pending:
            for to, source, size in thread.groups.pop(0):
                thread.block.shared[to : to + 16] = 0
                thread.block.shared[to : to + size] = np.frombuffer(ctypes.string_at(source, size), np.uint8)

    return wait


def _bf16_bits(value) -> int:
    bits = int(np.float32(value).view(np.uint32))
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


def _float_of(bits: int) -> np.float32:
    return np.array([bits], np.uint32).view(np.float32)[0]


class _Ptx:
    address = staticmethod(lambda array: int(array.ctypes.data))
    shared_address = staticmethod(
        lambda array: int(array.ctypes.data - getcurrent().block.shared.ctypes.data)
    )
    copy_async = staticmethod(_copy_async)
    copy_commit = staticmethod(_copy_commit)
    matrix_load = staticmethod(lambda at: _collective("matrix_load", int(at)))
    matrix_load_transposed = staticmethod(lambda at: _collective("matrix_load_transposed", int(at)))
    matrix_multiply_add = staticmethod(lambda *operands: _collective("multiply_add", *operands))
    pack_bf16 = staticmethod(lambda low, high: _bf16_bits(low) | _bf16_bits(high) << 16)
    low_bf16 = staticmethod(lambda word: _float_of((int(word) << 16) & 0xFFFFFFFF))
    high_bf16 = staticmethod(lambda word: _float_of(int(word) & 0xFFFF0000))
    exp2 = staticmethod(lambda value: np.exp2(np.float32(value)))


class _Libdevice:
    fmaf_rn = staticmethod(lambda a, b, c: np.float32(np.float64(a) * np.float64(b) + np.float64(c)))
    fmul_rn = staticmethod(lambda a, b: np.float32(a) * np.float32(b))
    fadd_rn = staticmethod(lambda a, b: np.float32(a) + np.float32(b))
    fsub_rn = staticmethod(lambda a, b: np.float32(a) - np.float32(b))
    fdiv_rn = staticmethod(lambda a, b: np.float32(a) / np.float32(b))
    frcp_rn = staticmethod(lambda a: np.float32(1.0) / np.float32(a))
    frsqrt_rn = staticmethod(lambda a: np.float32(1.0 / np.sqrt(np.float64(a))))
    float2int_rn = staticmethod(lambda a: int(np.rint(a)))
    log1pf = staticmethod(lambda a: np.log1p(np.float32(a)))
    float_as_int = staticmethod(lambda a: int(np.float32(a).view(np.int32)))


def _atomic_add(array, index, value):
    before = array[index]
    array[index] = before + value
    return before


def _shared_array(count, dtype, alignment=8):
    """The block's array of this line of source, the same for every thread."""
    block, frame = getcurrent().block, sys._getframe(1)
    key = (frame.f_code, frame.f_lineno)
    if key not in block.shared_arrays:
        kind = np.dtype(_DTYPES[dtype])
        block.shared_used = -(-block.shared_used // alignment) * alignment
        after = block.shared_used + count * kind.itemsize
        assert after <= SHARED_BYTES, f"{after} bytes of shared memory"
        block.shared_arrays[key] = block.shared[block.shared_used : after].view(kind)
        block.shared_used = after
    return block.shared_arrays[key]


def _local_array(count, dtype):
    kind = np.dtype(_DTYPES[dtype])
    return _GARBAGE.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind)


class _Cuda:
    shared = SimpleNamespace(array=_shared_array)
    local = SimpleNamespace(array=_local_array)
    atomic = SimpleNamespace(add=_atomic_add)
    threadIdx = property(lambda self: getcurrent().at)
    blockIdx = property(lambda self: getcurrent().block.at)
    gridDim = property(lambda self: getcurrent().block.grid)

    def syncthreads(self) -> None:
        _collective("barrier")

    def threadfence(self) -> None:
        """Threads run one at a time here."""

    def shfl_sync(self, mask, value, lane):
        assert mask == 0xFFFFFFFF
        return _collective("shuffle", value, lane)

    def shfl_xor_sync(self, mask, value, step):
        assert mask == 0xFFFFFFFF
        return _collective("shuffle_xor", value, step)

    def shfl_down_sync(self, mask, value, step):
        assert mask == 0xFFFFFFFF
        return _collective("shuffle_down", value, step)

    def clz(self, value):
        return 32 - int(value).bit_length()


_CASTS = {
    "float32": np.float32,
    "int32": int,
    "int64": int,
    "uint16": lambda value: int(value) & 0xFFFF,
    "uint32": lambda value: int(value) & 0xFFFFFFFF,
    "uint64": lambda value: int(value) & 0xFFFFFFFFFFFFFFFF,
}
_TYPES = SimpleNamespace(**_CASTS)
_DTYPES = {cast: name for name, cast in _CASTS.items() if name not in ("int32", "int64")} | {int: "int64"}


class _Rebuilder:
    """A kernel's functions as plain Python over the stand-ins."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}

    def rebuild(self, function):
        if id(function) in self._done:
            return self._done[id(function)]
        namespace = dict(function.__globals__)
        cells = tuple(python_types.CellType() for _ in function.__closure__ or ())
        rebuilt = python_types.FunctionType(
            function.__code__, namespace, function.__name__, function.__defaults__, cells
        )
        self._done[id(function)] = rebuilt
        for name in function.__code__.co_names:
            if name in namespace:
                namespace[name] = self._replace(name, namespace[name])
        for cell, original, name in zip(cells, function.__closure__ or (), function.__code__.co_freevars):
            cell.cell_contents = self._replace(name, original.cell_contents)
        return rebuilt

    def _replace(self, name: str, value):
        if name in ("cuda", "ptx", "libdevice", "types"):
            return {"cuda": _Cuda(), "ptx": _Ptx, "libdevice": _Libdevice, "types": _TYPES}[name]
        if isinstance(value, numba_types.Type) or str(value) in _CASTS:
            return _CASTS[str(value)]
        if isinstance(value, CUDADispatcher):
            return self.rebuild(value.py_func)
        if isinstance(value, Dispatcher) or is_jitted(value):
            return value.py_func
        called = getattr(value, "_name", None) or getattr(value, "__name__", "")
        if called.startswith("copy_wait_"):
            return _copy_wait(int(called.removeprefix("copy_wait_")))
        if getattr(value, "__module__", "") == "numba.cuda.libdevice":
            return getattr(_Libdevice, called)
        return value
