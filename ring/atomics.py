"""Memory ordering, and nothing else. The only file that knows it.

Each primitive is a stub with three meanings of one definition: its Python body (the model
checker's copy of the modules, where every call is a switch point), a CPU overload (LLVM
atomics) and a CUDA overload (PTX, ``.sys`` scope, since the host or a NIC may be the peer;
``.gpu`` for the ``…_device`` ones, between scheduler and engine, where no bus is in between).
Protocol code calls the stub and is compiled for each target from one source.

All words are int64 with bit 63 clear. An acquire names in a comment the release it pairs with.
"""

from __future__ import annotations

import time
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

SPINS_BEFORE_SLEEP = 256  # CPU: three spinning threads on two cores made a step 11 times slower
SLEEP_NS_SHORT = 50_000
SLEEP_NS_LONG = 500_000
SPINS_BEFORE_LONG_SLEEP = 2_000

# In the pure-Python copy (`ring.python_copy`) the model checker puts an object here, whose
# methods of the same names and arguments take the place of the bodies below.
interposer = None


# --- the primitives -------------------------------------------------------------------------


def load_relaxed(array, index):
    """Read a word that another agent may write; orders nothing."""
    if interposer is not None:
        return interposer.load_relaxed(array, index)
    return array[index]


def load_acquire(array, index):
    """Read a word; what its releaser wrote before is visible after."""
    if interposer is not None:
        return interposer.load_acquire(array, index)
    return array[index]


def store_relaxed(array, index, value):
    """Write a word that another agent may read; orders nothing."""
    if interposer is not None:
        return interposer.store_relaxed(array, index, value)
    array[index] = value
    return None


def store_release(array, index, value):
    """Write a word; everything written before is visible to who acquires it."""
    if interposer is not None:
        return interposer.store_release(array, index, value)
    array[index] = value
    return None


def load_acquire_device(array, index):
    """`load_acquire` of a word that an agent of the same device releases."""
    if interposer is not None:
        return interposer.load_acquire(array, index)
    return array[index]


def store_release_device(array, index, value):
    """`store_release` of a word that agents of the same device alone acquire: no bus is waited for."""
    if interposer is not None:
        return interposer.store_release(array, index, value)
    array[index] = value
    return None


def compare_and_swap(array, index, expected, desired):
    """Acquire-release CAS; the word's value before (equal to `expected` on success)."""
    if interposer is not None:
        return interposer.compare_and_swap(array, index, expected, desired)
    before = array[index]
    if before == expected:
        array[index] = desired
    return before


def fetch_add(array, index, value):
    """Acquire-release addition among agents of one device; the word's value before."""
    if interposer is not None:
        return interposer.fetch_add(array, index, value)
    before = array[index]
    array[index] = before + value
    return before


def fence():
    """Order all accesses before against all after, for observers on this processor or device."""
    if interposer is not None:
        interposer.fence()


def lane_barrier():
    """Wait for all lanes of this scheduler; orders their accesses. One lane: nothing."""
    if interposer is not None:
        interposer.lane_barrier()


def now_ns():
    """Monotonic time in nanoseconds (int64); comparable within one machine and target only."""
    if interposer is not None:
        return interposer.now_ns()
    return time.monotonic_ns()


def pause(spins):
    """Give way in a spin loop; `spins` is how often this wait has looked so far."""
    if interposer is not None:
        interposer.pause(spins)


UNCOUNTED: Any = {"_nrt": False}  # no reference counts around an access (`ring.jit.uncounted`)


# --- CPU: LLVM atomics ----------------------------------------------------------------------

_I64 = ir.IntType(64)
_I32 = ir.IntType(32)


def _element(context, builder, array_type, array, index):
    view = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, array_type, view, [index], wraparound=False)


def _check_words(array) -> None:
    if not (isinstance(array, types.Array) and array.ndim == 1 and array.dtype == types.int64):
        raise TypeError(f"atomics work on one-dimensional int64 arrays, got {array}")


def _cpu_load(ordering: str):
    @intrinsic
    def load(typingctx, array, index):
        _check_words(array)

        def codegen(context, builder, signature, args):
            pointer = _element(context, builder, signature.args[0], args[0], args[1])
            return builder.load_atomic(pointer, ordering, 8)

        return types.int64(array, types.intp), codegen

    return load


def _cpu_store(ordering: str):
    @intrinsic
    def store(typingctx, array, index, value):
        _check_words(array)

        def codegen(context, builder, signature, args):
            pointer = _element(context, builder, signature.args[0], args[0], args[1])
            builder.store_atomic(args[2], pointer, ordering, 8)
            return context.get_dummy_value()

        return types.void(array, types.intp, types.int64), codegen

    return store


@intrinsic
def _cpu_compare_and_swap(typingctx, array, index, expected, desired):
    _check_words(array)

    def codegen(context, builder, signature, args):
        pointer = _element(context, builder, signature.args[0], args[0], args[1])
        outcome = builder.cmpxchg(pointer, args[2], args[3], "acq_rel", "acquire")
        return builder.extract_value(outcome, 0)

    return types.int64(array, types.intp, types.int64, types.int64), codegen


@intrinsic
def _cpu_fetch_add(typingctx, array, index, value):
    _check_words(array)

    def codegen(context, builder, signature, args):
        pointer = _element(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("add", pointer, args[2], "acq_rel")

    return types.int64(array, types.intp, types.int64), codegen


@intrinsic
def _cpu_fence(typingctx):
    def codegen(context, builder, signature, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _cpu_now_ns(typingctx):
    def codegen(context, builder, signature, args):
        timespec = ir.LiteralStructType([_I64, _I64])
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_I32, [_I32, timespec.as_pointer()]), "clock_gettime"
        )
        slot = cgutils.alloca_once(builder, timespec)
        builder.call(function, [ir.Constant(_I32, time.CLOCK_MONOTONIC), slot])
        seconds = builder.load(cgutils.gep_inbounds(builder, slot, 0, 0))
        nanoseconds = builder.load(cgutils.gep_inbounds(builder, slot, 0, 1))
        return builder.add(builder.mul(seconds, ir.Constant(_I64, 1_000_000_000)), nanoseconds)

    return types.int64(), codegen


@intrinsic
def _cpu_relax(typingctx):
    """The processor's hint that this is a spin loop (inline assembly aborts Numba's JIT)."""

    def codegen(context, builder, signature, args):
        from llvmlite import binding

        triple = binding.get_process_triple()
        if triple.startswith(("x86_64", "i686")):
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse2.pause"
            )
            builder.call(function, [])
        elif triple.startswith(("aarch64", "arm64")):
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(ir.VoidType(), [_I32]), "llvm.aarch64.hint"
            )
            builder.call(function, [ir.Constant(_I32, 1)])  # YIELD
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _cpu_sleep_ns(typingctx, nanoseconds):
    def codegen(context, builder, signature, args):
        timespec = ir.LiteralStructType([_I64, _I64])
        pointer = timespec.as_pointer()
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_I32, [pointer, pointer]), "nanosleep"
        )
        slot = cgutils.alloca_once(builder, timespec)
        builder.store(ir.Constant(_I64, 0), cgutils.gep_inbounds(builder, slot, 0, 0))
        builder.store(args[0], cgutils.gep_inbounds(builder, slot, 0, 1))
        builder.call(function, [slot, ir.Constant(pointer, None)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


_load_monotonic, _load_acquire = _cpu_load("monotonic"), _cpu_load("acquire")
_store_monotonic, _store_release = _cpu_store("monotonic"), _cpu_store("release")


@overload(load_relaxed, jit_options=UNCOUNTED)
def _(array, index):
    return lambda array, index: _load_monotonic(array, index)


@overload(load_acquire, jit_options=UNCOUNTED)
def _(array, index):
    return lambda array, index: _load_acquire(array, index)


@overload(load_acquire_device, jit_options=UNCOUNTED)
def _(array, index):
    return lambda array, index: _load_acquire(array, index)


@overload(store_release_device, jit_options=UNCOUNTED)
def _(array, index, value):
    return lambda array, index, value: _store_release(array, index, value)


@overload(store_relaxed, jit_options=UNCOUNTED)
def _(array, index, value):
    return lambda array, index, value: _store_monotonic(array, index, value)


@overload(store_release, jit_options=UNCOUNTED)
def _(array, index, value):
    return lambda array, index, value: _store_release(array, index, value)


@overload(compare_and_swap, jit_options=UNCOUNTED)
def _(array, index, expected, desired):
    return lambda array, index, expected, desired: _cpu_compare_and_swap(array, index, expected, desired)


@overload(fetch_add, jit_options=UNCOUNTED)
def _(array, index, value):
    return lambda array, index, value: _cpu_fetch_add(array, index, value)


@overload(fence, jit_options=UNCOUNTED)
def _():
    return lambda: _cpu_fence()


@overload(lane_barrier, jit_options=UNCOUNTED)
def _():
    return lambda: None


@overload(now_ns, jit_options=UNCOUNTED)
def _():
    return lambda: _cpu_now_ns()


@overload(pause, jit_options=UNCOUNTED)
def _(spins):
    def body(spins):
        if spins < SPINS_BEFORE_SLEEP:
            _cpu_relax()
        elif spins < SPINS_BEFORE_LONG_SLEEP:
            _cpu_sleep_ns(SLEEP_NS_SHORT)
        else:
            _cpu_sleep_ns(SLEEP_NS_LONG)

    return body


# --- CUDA: PTX ------------------------------------------------------------------------------
# Never a plain or a cache-hinted load: those are not volatile, and LLVM hoists them out of the
# polling loop. Every asm has side_effect and a memory clobber. Words that a scheduler keeps in
# shared memory (`scheduler.state.hot_words`) are met by relaxed accesses and read-modify-writes
# alone: these take generic addresses, the rest are of global memory.

try:
    from numba.cuda.extending import intrinsic as cuda_intrinsic
    from numba.cuda.extending import overload as cuda_overload  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:  # the CUDA target is an extra
    HAVE_CUDA_TARGET = False
else:
    HAVE_CUDA_TARGET = True

    def _cuda_pointer(context, builder, array_type, array, index):
        from numba.cuda import cgutils as cuda_cgutils  # pyright: ignore[reportAttributeAccessIssue]

        view = context.make_array(array_type)(context, builder, array)
        return cuda_cgutils.get_item_pointer(context, builder, array_type, view, [index], wraparound=False)

    def _ptx(builder, result, argument_types, text, constraints, arguments):
        asm = ir.InlineAsm(ir.FunctionType(result, argument_types), text, constraints, side_effect=True)
        return builder.call(asm, arguments)

    def _cuda_load(instruction: str):
        @cuda_intrinsic
        def load(typingctx, array, index):
            def codegen(context, builder, signature, args):
                pointer = _cuda_pointer(context, builder, signature.args[0], args[0], args[1])
                return _ptx(
                    builder,
                    _I64,
                    [_I64.as_pointer()],
                    f"{instruction} $0, [$1];",
                    "=l,l,~{memory}",
                    [pointer],
                )

            return types.int64(array, types.int64), codegen

        return load

    def _cuda_store(instruction: str):
        @cuda_intrinsic
        def store(typingctx, array, index, value):
            def codegen(context, builder, signature, args):
                pointer = _cuda_pointer(context, builder, signature.args[0], args[0], args[1])
                _ptx(
                    builder,
                    ir.VoidType(),
                    [_I64.as_pointer(), _I64],
                    f"{instruction} [$0], $1;",
                    "l,l,~{memory}",
                    [pointer, args[2]],
                )
                return context.get_dummy_value()

            return types.void(array, types.int64, types.int64), codegen

        return store

    @cuda_intrinsic
    def _cuda_compare_and_swap(typingctx, array, index, expected, desired):
        def codegen(context, builder, signature, args):
            pointer = _cuda_pointer(context, builder, signature.args[0], args[0], args[1])
            return _ptx(
                builder,
                _I64,
                [_I64.as_pointer(), _I64, _I64],
                "atom.acq_rel.sys.cas.b64 $0, [$1], $2, $3;",
                "=l,l,l,l,~{memory}",
                [pointer, args[2], args[3]],
            )

        return types.int64(array, types.int64, types.int64, types.int64), codegen

    @cuda_intrinsic
    def _cuda_fetch_add(typingctx, array, index, value):
        def codegen(context, builder, signature, args):
            pointer = _cuda_pointer(context, builder, signature.args[0], args[0], args[1])
            return _ptx(
                builder,
                _I64,
                [_I64.as_pointer(), _I64],
                "atom.acq_rel.gpu.add.u64 $0, [$1], $2;",
                "=l,l,l,~{memory}",
                [pointer, args[2]],
            )

        return types.int64(array, types.int64, types.int64), codegen

    @cuda_intrinsic
    def _cuda_fence(typingctx):
        def codegen(context, builder, signature, args):
            _ptx(builder, ir.VoidType(), [], "fence.acq_rel.gpu;", "~{memory}", [])
            return context.get_dummy_value()

        return types.void(), codegen

    @cuda_intrinsic
    def _cuda_barrier(typingctx):
        def codegen(context, builder, signature, args):
            _ptx(builder, ir.VoidType(), [], "barrier.sync 0;", "~{memory}", [])
            return context.get_dummy_value()

        return types.void(), codegen

    @cuda_intrinsic
    def _cuda_now_ns(typingctx):
        def codegen(context, builder, signature, args):
            return _ptx(builder, _I64, [], "mov.u64 $0, %globaltimer;", "=l,~{memory}", [])

        return types.int64(), codegen

    @cuda_intrinsic
    def _cuda_nanosleep(typingctx, nanoseconds):
        def codegen(context, builder, signature, args):
            _ptx(builder, ir.VoidType(), [_I32], "nanosleep.u32 $0;", "r,~{memory}",
                 [builder.trunc(args[0], _I32)])  # fmt: skip
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    _cuda_load_relaxed = _cuda_load("ld.relaxed.sys.b64")
    _cuda_load_acquire = _cuda_load("ld.acquire.sys.global.b64")
    _cuda_store_relaxed = _cuda_store("st.relaxed.sys.b64")
    _cuda_store_release = _cuda_store("st.release.sys.global.b64")

    _cuda_load_acquire_device = _cuda_load("ld.acquire.gpu.global.b64")
    _cuda_store_release_device = _cuda_store("st.release.gpu.global.b64")

    @cuda_overload(load_acquire_device, target="cuda")
    def _(array, index):
        return lambda array, index: _cuda_load_acquire_device(array, index)

    @cuda_overload(store_release_device, target="cuda")
    def _(array, index, value):
        return lambda array, index, value: _cuda_store_release_device(array, index, value)

    @cuda_overload(load_relaxed, target="cuda")
    def _(array, index):
        return lambda array, index: _cuda_load_relaxed(array, index)

    @cuda_overload(load_acquire, target="cuda")
    def _(array, index):
        return lambda array, index: _cuda_load_acquire(array, index)

    @cuda_overload(store_relaxed, target="cuda")
    def _(array, index, value):
        return lambda array, index, value: _cuda_store_relaxed(array, index, value)

    @cuda_overload(store_release, target="cuda")
    def _(array, index, value):
        return lambda array, index, value: _cuda_store_release(array, index, value)

    @cuda_overload(compare_and_swap, target="cuda")
    def _(array, index, expected, desired):
        return lambda array, index, expected, desired: _cuda_compare_and_swap(array, index, expected, desired)

    @cuda_overload(fetch_add, target="cuda")
    def _(array, index, value):
        return lambda array, index, value: _cuda_fetch_add(array, index, value)

    @cuda_overload(fence, target="cuda")
    def _():
        return lambda: _cuda_fence()

    @cuda_overload(lane_barrier, target="cuda")
    def _():
        return lambda: _cuda_barrier()

    @cuda_overload(now_ns, target="cuda")
    def _():
        return lambda: _cuda_now_ns()

    @cuda_overload(pause, target="cuda")
    def _(spins):
        def body(spins):
            if spins > 64:
                _cuda_nanosleep(200)

        return body
