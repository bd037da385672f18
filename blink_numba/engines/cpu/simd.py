"""Vectors of sixteen float32 in Numba code; the only file that speaks LLVM for arithmetic.

`F32x16` is a Numba type whose values live in registers of compiled code only. LLVM cuts it to
what the machine has (one AVX-512 register, two AVX, four SSE or NEON), so there is one source
and no inline assembly. Every multiply-add is written out as `fma`: no optimiser decides about
contraction, so a value is rounded alike wherever it is computed, which is what makes answers
independent of batch and chunking.

Offsets count elements of the array given; loads and stores need no alignment and are not
checked: the caller owns the bounds.
"""

from __future__ import annotations

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model

LANES = 16

_F32, _I32, _I16, _I8, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8), ir.IntType(64)
_VECTOR = ir.VectorType(_F32, LANES)
_INTS = ir.VectorType(_I32, LANES)
# Before 2013 x86 had no fused multiply-add, and LLVM would call libm sixteen times for each.
_FUSED = not binding.get_process_triple().startswith("x86") or binding.get_host_cpu_features().get(
    "fma", False
)


class F32x16Type(types.Type):
    """Numba's type of sixteen float32 in a register."""

    def __init__(self) -> None:
        super().__init__(name="f32x16")


F32x16 = F32x16Type()
_PAIR = types.UniTuple(F32x16, 2)


@register_model(F32x16Type)
class _F32x16Model(models.PrimitiveModel):
    def __init__(self, dmm, fe_type) -> None:
        super().__init__(dmm, fe_type, _VECTOR)


def _pointer(context, builder, array_type, array, offset, as_type):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), as_type.as_pointer())


def _load(context, builder, array_type, array, offset, as_type):
    value = builder.load(_pointer(context, builder, array_type, array, offset, as_type))
    value.align = 1 if array_type.dtype == types.uint8 else 4
    return value


def _splat(builder, scalar, vector_type=_VECTOR):
    one = builder.insert_element(ir.Constant(vector_type, ir.Undefined), scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(
        one, ir.Constant(vector_type, ir.Undefined), ir.Constant(_INTS, [0] * LANES)
    )


def _constant(value: float):
    return ir.Constant(_VECTOR, [value] * LANES)


def _int_constant(value: int):
    return ir.Constant(_INTS, [value] * LANES)


def _fma(builder, a, b, c):
    if not _FUSED:
        return builder.fadd(builder.fmul(a, b), c)
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), "llvm.fma.v16f32"
    )
    return builder.call(function, [a, b, c])


def _max(builder, a, b):
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _pack_pair(context, builder, first, second):
    return context.make_tuple(builder, _PAIR, [first, second])


# --- moving -------------------------------------------------------------------------------------


@intrinsic
def load(typingctx, array, offset):
    """Sixteen float32 of a float32 or uint8 array, from `offset` on."""

    def codegen(context, builder, signature, args):
        return _load(context, builder, signature.args[0], args[0], args[1], _VECTOR)

    return F32x16(array, types.intp), codegen


@intrinsic
def store(typingctx, array, offset, value):
    """Write sixteen float32 into a float32 or uint8 array from `offset` on."""

    def codegen(context, builder, signature, args):
        array_type = signature.args[0]
        at = _pointer(context, builder, array_type, args[0], args[1], _VECTOR)
        builder.store(args[2], at).align = 1 if array_type.dtype == types.uint8 else 4
        return context.get_dummy_value()

    return types.void(array, types.intp, F32x16), codegen


@intrinsic
def prefetch(typingctx, array, offset):
    """Ask for the cache line at `offset`, which may lie beyond the array."""

    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], _I8)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32]),
            "llvm.prefetch.p0",
        )
        read, keep, data = (ir.Constant(_I32, value) for value in (0, 3, 1))
        builder.call(function, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def splat(typingctx, scalar):
    """The same float32 in every lane."""

    def codegen(context, builder, signature, args):
        return _splat(builder, args[0])

    return F32x16(types.float32), codegen


@intrinsic
def load_nibbles(typingctx, array, offset):
    """Sixteen bytes as two vectors: their low halves and their high halves, 0 … 15 each."""

    def codegen(context, builder, signature, args):
        codes = _load(context, builder, signature.args[0], args[0], args[1], ir.VectorType(_I8, LANES))
        codes = builder.zext(codes, _INTS)
        low = builder.sitofp(builder.and_(codes, _int_constant(15)), _VECTOR)
        high = builder.sitofp(builder.lshr(codes, _int_constant(4)), _VECTOR)
        return _pack_pair(context, builder, low, high)

    return _PAIR(array, types.intp), codegen


@intrinsic
def load_int8(typingctx, array, offset):
    """Sixteen signed bytes of a uint8 array as float32."""

    def codegen(context, builder, signature, args):
        codes = _load(context, builder, signature.args[0], args[0], args[1], ir.VectorType(_I8, LANES))
        return builder.sitofp(builder.sext(codes, _INTS), _VECTOR)

    return F32x16(array, types.intp), codegen


@intrinsic
def load_bfloat16(typingctx, array, offset):
    """Sixteen bfloat16 of a uint8 array as float32."""

    def codegen(context, builder, signature, args):
        codes = _load(context, builder, signature.args[0], args[0], args[1], ir.VectorType(_I16, LANES))
        bits = builder.shl(builder.zext(codes, _INTS), _int_constant(16))
        return builder.bitcast(bits, _VECTOR)

    return F32x16(array, types.intp), codegen


# --- arithmetic ---------------------------------------------------------------------------------


def _binary(emit):
    @intrinsic
    def operation(typingctx, a, b):
        return F32x16(F32x16, F32x16), lambda context, builder, signature, args: emit(builder, *args)

    return operation


add = _binary(lambda builder, a, b: builder.fadd(a, b))
multiply = _binary(lambda builder, a, b: builder.fmul(a, b))
divide = _binary(lambda builder, a, b: builder.fdiv(a, b))
maximum = _binary(_max)


@intrinsic
def fma(typingctx, a, b, c):
    """``a * b + c``, rounded once."""

    def codegen(context, builder, signature, args):
        return _fma(builder, *args)

    return F32x16(F32x16, F32x16, F32x16), codegen


@intrinsic
def fma_tile(typingctx, tile, left, right, x, offset):
    """One step of a register tile: every row's two vectors plus `left`, `right` times its scalar.

    Parameters
    ----------
    tile : tuple of 2R F32x16
        Accumulators; row r's are elements 2r and 2r + 1.
    left, right : F32x16
        Weights of 32 outputs at one input.
    x : float32 array
        Row r's value of that input is ``x[offset + r]``.
    """
    if not isinstance(tile, types.UniTuple):
        return None

    def codegen(context, builder, signature, args):
        accumulators = cgutils.unpack_tuple(builder, args[0])
        updated = []
        for row in range(len(accumulators) // 2):
            at = builder.add(args[4], ir.Constant(_I64, row))
            scalar = builder.load(_pointer(context, builder, signature.args[3], args[3], at, _F32))
            value = _splat(builder, scalar)
            updated.append(_fma(builder, args[1], value, accumulators[2 * row]))
            updated.append(_fma(builder, args[2], value, accumulators[2 * row + 1]))
        return context.make_tuple(builder, signature.return_type, updated)

    return tile(tile, F32x16, F32x16, x, types.intp), codegen


@intrinsic
def store_tile(typingctx, array, offset, tile):
    """Write a register tile as rows of 32 float32, one after the other."""

    def codegen(context, builder, signature, args):
        for position, value in enumerate(cgutils.unpack_tuple(builder, args[2])):
            at = builder.add(args[1], ir.Constant(_I64, position * LANES))
            pointer = _pointer(context, builder, signature.args[0], args[0], at, _VECTOR)
            builder.store(value, pointer).align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, tile), codegen


@intrinsic(prefer_literal=True)
def zero_tile(typingctx, rows):
    """A register tile of zeros for a literal number of rows."""
    if not isinstance(rows, types.IntegerLiteral):
        raise TypingError("the rows of a register tile must be a literal")
    tile = types.UniTuple(F32x16, 2 * rows.literal_value)

    def codegen(context, builder, signature, args):
        return context.make_tuple(builder, signature.return_type, [_constant(0.0)] * (2 * rows.literal_value))

    return tile(rows), codegen


# --- reductions and exp -------------------------------------------------------------------------


def _fold(builder, vector, combine):
    """Halve the vector until one lane is left: a fixed order whatever the machine."""
    width = LANES
    while width > 1:
        width //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        half = ir.VectorType(_I32, width)
        low = builder.shuffle_vector(vector, undefined, ir.Constant(half, list(range(width))))
        high = builder.shuffle_vector(vector, undefined, ir.Constant(half, list(range(width, 2 * width))))
        vector = combine(builder, low, high)
    return builder.extract_element(vector, ir.Constant(_I32, 0))


@intrinsic
def sum_lanes(typingctx, vector):
    """Sum of the lanes, by halves."""

    def codegen(context, builder, signature, args):
        return _fold(builder, args[0], lambda builder, a, b: builder.fadd(a, b))

    return types.float32(F32x16), codegen


@intrinsic
def max_lane(typingctx, vector):
    """Largest lane."""

    def codegen(context, builder, signature, args):
        return _fold(builder, args[0], _max)

    return types.float32(F32x16), codegen


_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6
_ROUND = 12582912.0  # 1.5 · 2**23: adding it leaves the nearest integer in the low bits of the mantissa
_EXP_RANGE = 87.0
_EXP_TERMS = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)


@intrinsic
def exp(typingctx, x):
    """e to the power of each lane; arguments are clipped to ±87. Relative error below 4e-7."""

    def codegen(context, builder, signature, args):
        x = _max(builder, args[0], _constant(-_EXP_RANGE))
        x = builder.select(builder.fcmp_ordered("<", x, _constant(_EXP_RANGE)), x, _constant(_EXP_RANGE))
        shifted = _fma(builder, x, _constant(_LOG2_E), _constant(_ROUND))
        power = builder.fsub(shifted, _constant(_ROUND))
        rest = _fma(builder, power, _constant(-_LN2_HIGH), x)
        rest = _fma(builder, power, _constant(-_LN2_LOW), rest)
        value = _constant(_EXP_TERMS[0])
        for term in _EXP_TERMS[1:]:
            value = _fma(builder, value, rest, _constant(term))
        exponent = builder.shl(builder.bitcast(shifted, _INTS), _int_constant(23))
        return builder.bitcast(builder.add(builder.bitcast(value, _INTS), exponent), _VECTOR)

    return F32x16(F32x16), codegen
