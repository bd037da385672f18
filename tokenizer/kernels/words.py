"""From one word to its ids: a lookup of the whole word, else merging with a small cache of results."""

from tokenizer.kernels.jit import kernel
from tokenizer.kernels.layout import (
    BLOB,
    BYTE_IDS,
    CACHE,
    CACHE_SHIFT,
    FLAGS,
    GOLDEN,
    HAS_MISSING_BYTES,
    LINEAR,
    LONG,
    LONG_SHIFT,
    LONGEST,
    MASKS,
    MAY_MISS_BYTES,
    MIX,
    SCRATCH,
    WORDS8,
    WORDS8_SHIFT,
    WORDS16,
    WORDS16_SHIFT,
    word,
)
from tokenizer.kernels.memory import (
    copy_40,
    find_in_line,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    shift_right,
    store_i32,
    store_i64,
    store_u8,
    trailing_zeros,
)
from tokenizer.kernels.merge import first_ids, merge_by_match, merge_by_rank

_ID_MASK = 0xFFFFFF
#: Ids that fit a cache entry beside its key.
_CACHED_IDS = 10


@kernel
def hash16(low, high):
    """Hash of a word of up to 16 bytes, given as two words of eight."""
    return (low ^ (high * MIX)) * GOLDEN


@kernel
def hash_long(state, text, length):
    """Hash of a word of any length."""
    value = length
    at = 0
    while at + 8 <= length:
        value = (value ^ load_i64(text + at)) * GOLDEN
        value ^= shift_right(value, 29)
        at += 8
    value = (value ^ (load_i64(text + at) & load_i64(word(state, MASKS) + 16 * (length - at)))) * GOLDEN
    return value ^ shift_right(value, 29)


@kernel
def find_word8(state, low, length):
    """Id of a word of up to 8 bytes, or -1."""
    line = word(state, WORDS8) + (shift_right(low * GOLDEN, word(state, WORDS8_SHIFT)) << 6)
    while True:
        found = find_in_line(line, low) & 0x1F
        while found != 0:
            entry = load_u32(line + 40 + (trailing_zeros(found) << 2))
            if (entry >> 24) == length:  # a word that ends with NUL has the same eight bytes as one without
                return entry & _ID_MASK
            found &= found - 1
        if load_i32(line + 60) == 0:
            return -1
        line += 64


@kernel
def find_word16(state, low, high, length):
    """Id of a word of 9 to 16 bytes, or -1."""
    line = word(state, WORDS16) + (shift_right(hash16(low, high), word(state, WORDS16_SHIFT)) << 6)
    while True:
        found = find_in_line(line, low) & 0x7
        while found != 0:
            lane = trailing_zeros(found)
            entry = load_u32(line + 48 + (lane << 2))
            if load_i64(line + 24 + (lane << 3)) == high and (entry >> 24) == length:
                return entry & _ID_MASK
            found &= found - 1
        if load_i32(line + 60) == 0:
            return -1
        line += 64


@kernel
def find_long_word(state, text, length):
    """Id of a word of more than 16 bytes, or -1."""
    key = hash_long(state, text, length)
    slot = word(state, LONG) + (shift_right(key * GOLDEN, word(state, LONG_SHIFT)) << 4)
    while True:
        entry = load_i64(slot + 8)
        if entry < 0:
            return -1
        if load_i64(slot) == key:
            stored = word(state, BLOB) + (entry >> 24)
            at = 0
            while at < length and load_u8(stored + at) == load_u8(text + at):
                at += 1
            # Bytes of a word are UTF-8, so the 0xff after each stored word matches none of them.
            if at == length and load_u8(stored + at) == 0xFF:
                return entry & _ID_MASK
        slot += 16


@kernel
def merge_word(state, text, length, out):
    """Merge a word that is not a token; returns the address after its ids."""
    flags = word(state, FLAGS)
    if flags & LINEAR == 0:
        return merge_by_rank(state, first_ids(state, text, length), out)
    if flags & HAS_MISSING_BYTES != 0 and word(state, MAY_MISS_BYTES) != 0:
        byte_ids = word(state, BYTE_IDS)
        scratch = word(state, SCRATCH)
        kept = 0
        for i in range(length):
            byte = load_u8(text + i)
            store_u8(scratch + kept, byte)
            if load_i32(byte_ids + 4 * byte) >= 0:
                kept += 1
        if kept == 0:
            return out
        if kept < length:
            return merge_by_match(state, scratch, kept, out)
    return merge_by_match(state, text, length, out)


@kernel
def _merge_cached(state, text, length, low, high, out):
    """`merge_word` of up to 16 bytes through the cache: [low, high, length | count << 8, ids]."""
    slot = word(state, CACHE) + (
        shift_right(hash16(low, high) + length * GOLDEN, word(state, CACHE_SHIFT)) << 6
    )
    head = load_u32(slot + 16)
    if load_i64(slot) == low and load_i64(slot + 8) == high and (head & 0xFF) == length:
        copy_40(out, slot + 20)
        return out + 4 * (head >> 8)
    end = merge_word(state, text, length, out)
    count = (end - out) >> 2
    if count <= _CACHED_IDS:
        store_i64(slot, low)
        store_i64(slot + 8, high)
        store_i32(slot + 16, length | (count << 8))
        copy_40(slot + 20, out)
    return end


@kernel
def append_word(state, text, length, out):
    """Write the ids of the word of `length` bytes at `text`; returns the address after them."""
    if length <= 8:
        low = load_i64(text) & load_i64(word(state, MASKS) + 16 * length)
        token = find_word8(state, low, length)
        if token < 0:
            return _merge_cached(state, text, length, low, 0, out)
    elif length <= 16:
        low = load_i64(text)
        high = load_i64(text + 8) & load_i64(word(state, MASKS) + 16 * (length - 8))
        token = find_word16(state, low, high, length)
        if token < 0:
            return _merge_cached(state, text, length, low, high, out)
    else:
        token = -1
        if length <= word(state, LONGEST):
            token = find_long_word(state, text, length)
        if token < 0:
            return merge_word(state, text, length, out)
    store_i32(out, token)
    return out + 4
