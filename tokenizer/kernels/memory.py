"""Loads, stores, bit operations and vectors on raw addresses, as LLVM intrinsics.

Vectors are LLVM's generic ones, of 64 bytes: the compiler maps them to whatever the CPU has (AVX-512, AVX2,
SSE, NEON). Nothing here checks bounds; buffers end with `PADDING` readable bytes.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

#: Bytes that must be readable after the end of a text.
PADDING = 128

_I1, _I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
_INT = types.int64


def _pointer(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


def _loader(bits, signed=False):
    kind = ir.IntType(bits)

    @intrinsic
    def load(typingctx, address):
        def codegen(context, builder, signature, args):
            value = builder.load(_pointer(builder, args[0], kind))
            value.align = 1
            if bits == 64:
                return value
            return builder.sext(value, _I64) if signed else builder.zext(value, _I64)

        return _INT(_INT), codegen

    return load


load_u8 = _loader(8)
load_u16 = _loader(16)
load_u32 = _loader(32)
load_i32 = _loader(32, signed=True)
load_i64 = _loader(64)


def _storer(bits):
    kind = ir.IntType(bits)

    @intrinsic
    def store(typingctx, address, value):
        def codegen(context, builder, signature, args):
            narrow = args[1] if bits == 64 else builder.trunc(args[1], kind)
            builder.store(narrow, _pointer(builder, args[0], kind)).align = 1
            return context.get_dummy_value()

        return types.void(_INT, _INT), codegen

    return store


store_u8 = _storer(8)
store_i32 = _storer(32)
store_i64 = _storer(64)


@intrinsic
def copy(typingctx, target, source, count):
    """Copy `count` bytes between buffers that do not overlap."""

    def codegen(context, builder, signature, args):
        target_p, source_p = (_pointer(builder, a, _I8) for a in args[:2])
        cgutils.raw_memcpy(builder, target_p, source_p, args[2], 1)
        return context.get_dummy_value()

    return types.void(_INT, _INT, _INT), codegen


@intrinsic
def copy_40(typingctx, target, source):
    """Copy 40 bytes: the ids of one cached word."""

    def codegen(context, builder, signature, args):
        kind = ir.VectorType(_I64, 5)
        value = builder.load(_pointer(builder, args[1], kind))
        value.align = 4
        builder.store(value, _pointer(builder, args[0], kind)).align = 4
        return context.get_dummy_value()

    return types.void(_INT, _INT), codegen


@intrinsic
def address_of_bytes(typingctx, data):
    """Address of the first byte of a ``bytes`` argument."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.ptrtoint(array.data, _I64)

    return _INT(data), codegen


@intrinsic
def shift_right(typingctx, value, count):
    """Logical shift right; ``>>`` of int64 copies the sign."""

    def codegen(context, builder, signature, args):
        return builder.lshr(args[0], args[1])

    return _INT(_INT, _INT), codegen


@intrinsic
def trailing_zeros(typingctx, value):
    """Index of the lowest set bit, 64 if there is none."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(_I1, 0))

    return _INT(_INT), codegen


@intrinsic
def leading_zeros(typingctx, value):
    """63 minus the index of the highest set bit, 64 if there is none."""

    def codegen(context, builder, signature, args):
        return builder.ctlz(args[0], ir.Constant(_I1, 0))

    return _INT(_INT), codegen


@intrinsic
def bit_count(typingctx, value):
    """Number of set bits."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return _INT(_INT), codegen


def _splat(builder, value, kind, lanes):
    undefined = ir.Constant(ir.VectorType(kind, lanes), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
    return builder.shuffle_vector(first, undefined, zeros)


def _mask_of(builder, lanes_i1, lanes):
    return (
        builder.zext(builder.bitcast(lanes_i1, ir.IntType(lanes)), _I64)
        if lanes < 64
        else builder.bitcast(lanes_i1, _I64)
    )


@intrinsic
def find_in_line(typingctx, line, key):
    """Lanes of the 64-byte `line` whose eight words equal `key`, as bits 0 to 7."""

    def codegen(context, builder, signature, args):
        kind = ir.VectorType(_I64, 8)
        words = builder.load(_pointer(builder, args[0], kind))
        words.align = 64
        equal = builder.icmp_unsigned("==", words, _splat(builder, args[1], _I64, 8))
        return _mask_of(builder, equal, 8)

    return _INT(_INT, _INT), codegen


@intrinsic
def find_pair(typingctx, line, pair):
    """Lanes of the 64-byte `line` whose upper 40 bits equal `pair`, as bits 0 to 7."""

    def codegen(context, builder, signature, args):
        kind = ir.VectorType(_I64, 8)
        words = builder.load(_pointer(builder, args[0], kind))
        words.align = 64
        pairs = builder.lshr(words, ir.Constant(kind, [24] * 8))
        equal = builder.icmp_unsigned("==", pairs, _splat(builder, args[1], _I64, 8))
        return _mask_of(builder, equal, 8)

    return _INT(_INT, _INT), codegen


def _byte_mask(compare):
    """Intrinsic: bit i says whether byte i of the 64 bytes at an address passes `compare`."""

    @intrinsic
    def mask(typingctx, address):
        def codegen(context, builder, signature, args):
            kind = ir.VectorType(_I8, 64)
            data = builder.load(_pointer(builder, args[0], kind))
            data.align = 1
            return _mask_of(builder, compare(builder, data, lambda v: ir.Constant(kind, [v] * 64)), 64)

        return _INT(_INT), codegen

    return mask


def _in_range(builder, data, constant, low, high):
    return builder.icmp_unsigned("<=", builder.sub(data, constant(low)), constant(high - low))


def _equal(value):
    return _byte_mask(lambda b, d, c: b.icmp_unsigned("==", d, c(value)))


def _between(low, high):
    return _byte_mask(lambda b, d, c: _in_range(b, d, c, low, high))


def _letters(builder, data, constant):
    return _in_range(builder, builder.or_(data, constant(0x20)), constant, ord("a"), ord("z"))


def _white_space(builder, data, constant):
    space = builder.icmp_unsigned("==", data, constant(0x20))
    return builder.or_(space, _in_range(builder, data, constant, 0x09, 0x0D))


def _line_ends(builder, data, constant):
    feed = builder.icmp_unsigned("==", data, constant(0x0A))
    return builder.or_(feed, builder.icmp_unsigned("==", data, constant(0x0D)))


@intrinsic
def bytes_equal(typingctx, address, value):
    """Bit i says whether byte i of the 64 bytes at `address` is `value`."""

    def codegen(context, builder, signature, args):
        wanted = _splat(builder, builder.trunc(args[1], _I8), _I8, 64)
        return _mask_of(builder, builder.icmp_unsigned("==", _vector_at(builder, args[0], 0), wanted), 64)

    return _INT(_INT, _INT), codegen


def _rare(builder, data, constant):
    """Control characters but tab and line ends, and bytes that no or only unassigned characters have."""
    control = builder.icmp_unsigned("<", data, constant(0x20))
    layout = builder.or_(
        _in_range(builder, data, constant, 0x09, 0x0A), builder.icmp_unsigned("==", data, constant(0x0D))
    )
    control = builder.and_(control, builder.not_(layout))
    high = builder.icmp_unsigned(">=", data, constant(0xF1))
    return builder.or_(builder.or_(control, high), _in_range(builder, data, constant, 0xC0, 0xC1))


rare_bytes = _byte_mask(_rare)
ascii_letters = _byte_mask(_letters)
ascii_digits = _between(ord("0"), ord("9"))
ascii_white_space = _byte_mask(_white_space)
line_ends = _byte_mask(_line_ends)
spaces = _equal(0x20)
apostrophes = _equal(ord("'"))
not_ascii = _between(0x80, 0xFF)
continuations = _between(0x80, 0xBF)
leads_of_2 = _between(0xC0, 0xDF)
leads_of_3 = _between(0xE0, 0xEF)
leads_of_4 = _between(0xF0, 0xFF)


def _any_of(builder, *masks):
    result = masks[0]
    for mask in masks[1:]:
        result = builder.or_(result, mask)
    return result


@intrinsic
def leads_of_2_byte_letters(typingctx, address):
    """First bytes of two-byte letters that can be told from their bytes alone.

    Cyrillic (U+0400 to U+047F), and Latin-1 without multiplication and division signs.
    """

    def codegen(context, builder, signature, args):
        first, second = (_vector_at(builder, args[0], n) for n in range(2))
        cyrillic = _lanes_between(builder, first, 0xD0, 0xD1)
        latin = _lanes_between(builder, first, 0xC3, 0xC3)
        signs = _any_of(
            builder, _lanes_between(builder, second, 0x97, 0x97), _lanes_between(builder, second, 0xB7, 0xB7)
        )
        found = _any_of(builder, cyrillic, builder.and_(latin, builder.not_(signs)))
        return _mask_of(builder, found, 64)

    return _INT(_INT), codegen


@intrinsic
def leads_of_3_byte_letters(typingctx, address):
    """First bytes of three-byte letters that can be told from their bytes alone.

    Han (U+4E00 to U+9FFF), Hangul (U+AC00 to U+D77F, from U+B000 all letters), kana without marks and signs.
    """

    def codegen(context, builder, signature, args):
        first, second, third = (_vector_at(builder, args[0], n) for n in range(3))

        def lanes(vector, low, high):
            return _lanes_between(builder, vector, low, high)

        whole = _any_of(builder, lanes(first, 0xE5, 0xE9), lanes(first, 0xEB, 0xEC))
        from_4e00 = builder.and_(lanes(first, 0xE4, 0xE4), lanes(second, 0xB8, 0xBF))
        from_ac00 = builder.and_(lanes(first, 0xEA, 0xEA), lanes(second, 0xB0, 0xBF))
        to_d77f = builder.and_(lanes(first, 0xED, 0xED), lanes(second, 0x80, 0x9D))
        signs = _any_of(
            builder,
            builder.and_(lanes(second, 0x81, 0x81), lanes(third, 0x80, 0x80)),
            builder.and_(
                lanes(second, 0x82, 0x82),
                _any_of(builder, lanes(third, 0x97, 0x9C), lanes(third, 0xA0, 0xA0)),
            ),
            builder.and_(lanes(second, 0x83, 0x83), lanes(third, 0xBB, 0xBB)),
        )
        kana = builder.and_(lanes(first, 0xE3, 0xE3), lanes(second, 0x81, 0x83))
        kana = builder.and_(kana, builder.not_(signs))
        return _mask_of(builder, _any_of(builder, whole, from_4e00, from_ac00, to_d77f, kana), 64)

    return _INT(_INT), codegen


def _vector_at(builder, address, offset):
    data = builder.load(
        _pointer(builder, builder.add(address, ir.Constant(_I64, offset)), ir.VectorType(_I8, 64))
    )
    data.align = 1
    return data


def _lanes_between(builder, data, low, high):
    return _in_range(builder, data, lambda v: ir.Constant(data.type, [v] * 64), low, high)
