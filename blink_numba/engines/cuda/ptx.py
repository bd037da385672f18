"""PTX that Numba has no word for: asynchronous copies, matrix instructions, bf16 conversions.

Everything here is an intrinsic that emits one instruction. bf16 values live in memory as
uint16, two of them in a register as uint32 (the element of the lower index in the lower half).
Global addresses are int64, addresses in shared memory uint32, both in bytes.

Source of the fragment layouts: PTX ISA, "Matrix multiply-accumulate operation using
mma instruction", m16n8k16 with ``.bf16`` operands, and "ldmatrix".
"""

from __future__ import annotations

from llvmlite import ir

from blink_numba.engines.cuda._cuda import intrinsic, types

_VOID, _I32, _I64, _F32 = ir.VoidType(), ir.IntType(32), ir.IntType(64), ir.FloatType()
_FOUR_WORDS = types.UniTuple(types.uint32, 4)
_FOUR_FLOATS = types.UniTuple(types.float32, 4)


def _emit(builder, result, text: str, constraints: str, args):
    """One instruction; what touches memory is volatile, arithmetic may be moved and dropped."""
    volatile = "memory" in constraints
    function = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(ir.InlineAsm(function, text, constraints, side_effect=volatile), args)


def _emit_four(context, builder, element, tuple_type, text: str, constraints: str, args):
    """An instruction with four results, as a Numba tuple."""
    struct = _emit(builder, ir.LiteralStructType([element] * 4), text, constraints, args)
    values = [builder.extract_value(struct, index) for index in range(4)]
    return context.make_tuple(builder, tuple_type, values)


def _void(name: str, argument_types: tuple, text: str, constraints: str):
    """An intrinsic without a result."""
    signature = types.void(*argument_types)

    def codegen(context, builder, _signature, args):
        _emit(builder, _VOID, text, constraints, args)
        return context.get_dummy_value()

    return _intrinsic(name, len(argument_types), signature, codegen)


def _scalar(name: str, result, llvm_result, argument_types: tuple, text: str, constraints: str):
    """An intrinsic with one result in a register."""
    signature = result(*argument_types)

    def codegen(_context, builder, _signature, args):
        return _emit(builder, llvm_result, text, constraints, args)

    return _intrinsic(name, len(argument_types), signature, codegen)


def _intrinsic(name: str, arity: int, signature, codegen):
    """`intrinsic` of a function that takes `arity` arguments (Numba reads them off the function)."""
    typers = {
        0: lambda typingctx: (signature, codegen),
        1: lambda typingctx, a: (signature, codegen),
        2: lambda typingctx, a, b: (signature, codegen),
        3: lambda typingctx, a, b, c: (signature, codegen),
        5: lambda typingctx, a, b, c, d, e: (signature, codegen),
    }
    typer = typers[arity]
    typer.__name__ = typer.__qualname__ = name
    return intrinsic(typer)


@intrinsic
def address(typingctx, array):
    """Address of a device array's first element (int64)."""

    def codegen(context, builder, signature, args):
        view = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.ptrtoint(view.data, _I64)

    return types.int64(array), codegen


@intrinsic
def shared_address(typingctx, array):
    """Address of a shared array's first element within shared memory (uint32)."""

    def codegen(context, builder, signature, args):
        view = context.make_array(signature.args[0])(context, builder, args[0])
        generic = builder.ptrtoint(view.data, _I64)
        text = "{ .reg .u64 t; cvta.to.shared.u64 t, $1; cvt.u32.u64 $0, t; }"
        return _emit(builder, _I32, text, "=r,l", [generic])

    return types.uint32(array), codegen


# copy_async(shared, global, bytes): 16 bytes to shared memory, those past `bytes` (0 … 16) as zeros
copy_async = _void(
    "copy_async",
    (types.uint32, types.int64, types.int32),
    "cp.async.cg.shared.global [$0], [$1], 16, $2;",
    "r,l,r,~{memory}",
)
copy_commit = _void("copy_commit", (), "cp.async.commit_group;", "~{memory}")


def copy_wait(pending: int):
    """Intrinsic that waits until at most `pending` of the thread's copy groups are under way."""
    return _void(f"copy_wait_{pending}", (), f"cp.async.wait_group {pending};", "~{memory}")


@intrinsic
def matrix_load(typingctx, shared):
    """Four 8×8 matrices of 16-bit elements; lane ``8 m + r`` gives the address of row r of matrix m."""

    def codegen(context, builder, signature, args):
        text = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];"
        return _emit_four(
            context, builder, _I32, signature.return_type, text, "=r,=r,=r,=r,r,~{memory}", list(args)
        )

    return _FOUR_WORDS(types.uint32), codegen


@intrinsic
def matrix_load_transposed(typingctx, shared):
    """`matrix_load`, each matrix transposed."""

    def codegen(context, builder, signature, args):
        text = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];"
        return _emit_four(
            context, builder, _I32, signature.return_type, text, "=r,=r,=r,=r,r,~{memory}", list(args)
        )

    return _FOUR_WORDS(types.uint32), codegen


@intrinsic
def matrix_multiply_add(typingctx, c0, c1, c2, c3, a0, a1, a2, a3, b0, b1):
    """One warp's ``C[16, 8] + A[16, 16] B[16, 8]``: bf16 operands, float32 sums."""

    def codegen(context, builder, signature, args):
        text = (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{$0, $1, $2, $3}, {$8, $9, $10, $11}, {$12, $13}, {$4, $5, $6, $7};"
        )
        constraints = "=f,=f,=f,=f,f,f,f,f,r,r,r,r,r,r"
        return _emit_four(context, builder, _F32, signature.return_type, text, constraints, list(args))

    return _FOUR_FLOATS(*(types.float32,) * 4, *(types.uint32,) * 6), codegen


@intrinsic
def load_16_bytes(typingctx, pointer):
    """16 bytes of global memory, aligned, as four words."""

    def codegen(context, builder, signature, args):
        text = "ld.global.v4.u32 {$0, $1, $2, $3}, [$4];"
        return _emit_four(
            context, builder, _I32, signature.return_type, text, "=r,=r,=r,=r,l,~{memory}", list(args)
        )

    return _FOUR_WORDS(types.int64), codegen


store_16_bytes = _void(
    "store_16_bytes",
    (types.int64,) + (types.uint32,) * 4,
    "st.global.v4.u32 [$0], {$1, $2, $3, $4};",
    "l,r,r,r,r,~{memory}",
)
pack_bf16 = _scalar(
    "pack_bf16", types.uint32, _I32, (types.float32, types.float32), "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f"
)
low_bf16 = _scalar("low_bf16", types.float32, _F32, (types.uint32,), "shl.b32 $0, $1, 16;", "=f,r")
high_bf16 = _scalar("high_bf16", types.float32, _F32, (types.uint32,), "and.b32 $0, $1, 0xffff0000;", "=f,r")
exp2 = _scalar("exp2", types.float32, _F32, (types.float32,), "ex2.approx.ftz.f32 $0, $1;", "=f,f")
log2 = _scalar("log2", types.float32, _F32, (types.float32,), "lg2.approx.ftz.f32 $0, $1;", "=f,f")
