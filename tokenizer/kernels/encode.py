"""The entry: bytes to ids."""

from tokenizer.kernels.added import added_level
from tokenizer.kernels.blocks import decode
from tokenizer.kernels.jit import entry, kernel
from tokenizer.kernels.layout import (
    FALLBACK_IDS,
    FAMILY,
    FLAGS,
    HAS_MISSING_BYTES,
    MAX_DIGITS,
    MAY_MISS_BYTES,
    NORMALIZED_ADDED,
    ORDINARY_ADDED,
    OUT,
    PREPEND_SPACE,
    RARE_MISSING_BYTES,
    RAW_ADDED,
    STARTS,
    TEXT,
    word,
)
from tokenizer.kernels.memory import (
    PADDING,
    address_of_bytes,
    copy,
    load_i32,
    load_i64,
    load_u8,
    rare_bytes,
    store_i32,
    store_i64,
    store_u8,
    trailing_zeros,
)
from tokenizer.kernels.merge import character_id
from tokenizer.kernels.split_cl100k import mark_words_cl100k
from tokenizer.kernels.split_deepseek import piece_end_deepseek, word_end_deepseek
from tokenizer.kernels.split_gpt2 import mark_words_gpt2
from tokenizer.kernels.split_o200k import digits_end, word_end_o200k
from tokenizer.kernels.words import append_word

# Values of `splitters.Family`.
_WHOLE, _GPT2, _CL100K, _O200K = 0, 1, 2, 3


@kernel
def _append_marked_words(state, start, end, out):
    """Encode the words that `STARTS` marks in the text from `start` to `end`."""
    starts_at = word(state, STARTS)
    begin = start
    for k in range((end - start + 63) >> 6):
        starts = load_i64(starts_at + (k << 3))
        block = start + (k << 6)
        if k == 0:
            starts &= ~1
        while starts != 0:
            here = block + trailing_zeros(starts)
            starts &= starts - 1
            out = append_word(state, begin, here - begin, out)
            begin = here
    return append_word(state, begin, end - begin, out)


@kernel
def _append_known_runs(state, start, end, out):
    """Encode a text that is one word but for the characters without a token, which become their bytes."""
    if word(state, FLAGS) & PREPEND_SPACE != 0:
        start -= 1  # over a byte that is done with, or before the text
        store_u8(start, 0x20)
    fallback = word(state, FALLBACK_IDS)
    begin = at = start
    while at < end:
        decoded = decode(at)
        after = at + (decoded & 7)
        if character_id(state, decoded >> 3) < 0:
            if at > begin:
                out = append_word(state, begin, at - begin, out)
            while at < after:
                store_i32(out, load_i32(fallback + 4 * load_u8(at)))
                out += 4
                at += 1
            begin = after
        at = after
    if at > begin:
        out = append_word(state, begin, at - begin, out)
    return out


@kernel
def _encode_plain(state, start, end, parse_special, out):
    """Encode a text in which no added token is looked for."""
    family = word(state, FAMILY)
    if family == _GPT2:
        mark_words_gpt2(state, start, end - start)
        return _append_marked_words(state, start, end, out)
    if family == _CL100K:
        mark_words_cl100k(state, start, end - start)
        return _append_marked_words(state, start, end, out)
    if family == _WHOLE:
        return _append_known_runs(state, start, end, out)
    piece = start
    while start < end:
        if family == _O200K:
            stop = word_end_o200k(state, start, end)
        else:
            if start == piece:
                piece = piece_end_deepseek(state, start, end)
            if start == piece:
                stop = piece = digits_end(state, start, end, word(state, MAX_DIGITS))
            else:
                stop = word_end_deepseek(state, start, piece)
        out = append_word(state, start, stop - start, out)
        start = stop
    return out


_encode_normalized = added_level(1, _encode_plain)
_encode_raw = added_level(0, _encode_plain)
_encode_both = added_level(0, _encode_normalized)


@kernel
def _may_miss_bytes(text, end, flags):
    """1 if a byte of the text may be one without an id."""
    if flags & RARE_MISSING_BYTES == 0:
        return 1
    while text + 64 <= end:
        if rare_bytes(text) != 0:
            return 1
        text += 64
    return 1 if rare_bytes(text) & ((1 << (end - text)) - 1) != 0 else 0


#: Bits of `encode_text`'s mode: special tokens match; tokens of level 0 have been cut out already.
PARSE_SPECIAL, PAST_RAW = 1, 2


@entry("int64(Bytes(uint8, 1, 'C', readonly=True), int64, int64)")
def encode_text(data, state, mode):
    """Encode UTF-8 `data` into `OUT`; returns the number of ids.

    The workspace's buffers must be large enough for ``len(data)`` bytes.
    """
    length = len(data)
    out = word(state, OUT)
    if length == 0:
        return 0
    text = word(state, TEXT)
    end = text + length
    copy(text, address_of_bytes(data), length)
    for at in range(0, PADDING, 8):
        store_i64(end + at, 0)
    flags = word(state, FLAGS)
    if flags & HAS_MISSING_BYTES != 0:
        store_i64(state + 8 * MAY_MISS_BYTES, _may_miss_bytes(text, end, flags))
    special = mode & PARSE_SPECIAL
    levels = flags & (RAW_ADDED | NORMALIZED_ADDED)
    if mode & PAST_RAW != 0:
        levels &= ~RAW_ADDED
    if special == 0 and flags & ORDINARY_ADDED == 0:
        levels = 0
    if levels == 0:
        stop = _encode_plain(state, text, end, special, out)
    elif levels == RAW_ADDED:
        stop = _encode_raw(state, text, end, special, out)
    elif levels == NORMALIZED_ADDED:
        stop = _encode_normalized(state, text, end, special, out)
    else:
        stop = _encode_both(state, text, end, special, out)
    return (stop - out) >> 2
