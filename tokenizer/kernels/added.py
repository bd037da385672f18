"""Added tokens: matched in the text itself, leftmost first and longest first, before it is cut into words.

There are two levels: tokens that match raw text, and in what is left those that match normalised text.
"""

from tokenizer.kernels.blocks import class_of, decode
from tokenizer.kernels.jit import kernel
from tokenizer.kernels.layout import (
    ADDED,
    ADDED_COUNT,
    ADDED_FIRST,
    ADDED_ONLY,
    ADDED_SHIFT,
    ADDED_TRIE,
    GOLDEN,
    LEFT_STRIP,
    RIGHT_STRIP,
    SINGLE_WORD,
    SPECIAL,
    WHITE_BIT,
    WORD_BIT,
    word,
)
from tokenizer.kernels.memory import (
    bytes_equal,
    load_i32,
    load_i64,
    load_u8,
    shift_right,
    store_i32,
    trailing_zeros,
)


@kernel
def _longest_added(state, text, end, level):
    """Index of the longest added token at `text`, or -1. Its trie starts at node `ADDED_COUNT` + `level`."""
    count = word(state, ADDED_COUNT)
    trie = word(state, ADDED_TRIE)
    shift = word(state, ADDED_SHIFT)
    node = count + level
    best = -1
    while text < end:
        key = (node << 8) | load_u8(text)
        text += 1
        slot = trie + (shift_right(key * GOLDEN, shift) << 3)
        entry = load_i64(slot)
        while entry >= 0 and (entry >> 24) != key:
            slot += 8
            entry = load_i64(slot)
        if entry < 0:
            break
        node = entry & 0xFFFFFF
        if node < count:
            best = node
    return best


@kernel
def _next_candidate(state, text, end, level):
    """First position from `text` on whose byte starts an added token of `level`, or `end`."""
    only = word(state, ADDED_ONLY + level)
    if only >= 0:
        while text < end:
            found = bytes_equal(text, only)
            if found != 0:
                return min(end, text + trailing_zeros(found))
            text += 64
        return end
    first = word(state, ADDED_FIRST)
    while text < end and (load_u8(first + load_u8(text)) >> level) & 1 == 0:
        text += 1
    return text


@kernel
def _has_bit(state, text, bit):
    """Whether the class of the character at `text` has `bit`."""
    return class_of(state, decode(text) >> 3) & bit != 0


@kernel
def _character_before(text):
    """Address of the character that ends before `text`."""
    text -= 1
    while load_u8(text) & 0xC0 == 0x80:
        text -= 1
    return text


@kernel
def _counts(state, start, match, stop, end, flags, parse_special):
    """Whether a match from `match` to `stop` in the text from `start` to `end` stands for its token."""
    if flags & SPECIAL != 0 and parse_special == 0:
        return False
    if flags & SINGLE_WORD != 0:
        if match > start and _has_bit(state, _character_before(match), WORD_BIT):
            return False
        if stop < end and _has_bit(state, stop, WORD_BIT):
            return False
    return True


def added_level(level, encode_rest):
    """Kernel that encodes a text: added tokens of `level` as such, by `encode_rest` what is between them."""

    @kernel
    def encode_level(state, start, end, parse_special, out):
        done = start
        at = _next_candidate(state, start, end, level)
        while at < end:
            found = _longest_added(state, at, end, level)
            if found < 0:
                at = _next_candidate(state, at + 1, end, level)
                continue
            info = word(state, ADDED) + 16 * found
            flags = load_i32(info + 4)
            match = at
            stop = at + load_i32(info + 8)
            at = _next_candidate(state, stop, end, level)
            if not _counts(state, start, match, stop, end, flags, parse_special):
                continue
            if flags & LEFT_STRIP != 0:
                while match > done and _has_bit(state, _character_before(match), WHITE_BIT):
                    match = _character_before(match)
            if flags & RIGHT_STRIP != 0:
                while stop < end and _has_bit(state, stop, WHITE_BIT):
                    stop += decode(stop) & 7
            if match > done:
                out = encode_rest(state, done, match, parse_special, out)
            store_i32(out, load_i32(info))
            out += 4
            done = stop
        if done < end:
            out = encode_rest(state, done, end, parse_special, out)
        return out

    return encode_level
