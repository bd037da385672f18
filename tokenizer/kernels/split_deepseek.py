"""Words of DeepSeek's three splits, one word at a time.

First ``\\p{N}{1,3}``, then runs of Han and kana are cut out. What is left, and the cut-out pieces themselves,
are split by ``[!-/:-@\\[-`{-~][A-Za-z]+``, ``[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+``,
`` ?[\\p{P}\\p{S}]+[\\r\\n]*`` and the usual rules of white space. Characters that no alternative takes form a
word with their like.
"""

from tokenizer.kernels.blocks import class_of, decode
from tokenizer.kernels.jit import kernel
from tokenizer.kernels.memory import load_u8
from tokenizer.kernels.split_o200k import (
    CATEGORY,
    MARK,
    NUMBER,
    SPACE,
    UPPER,
    category_at,
    is_line_end,
    white_space_end,
)

PUNCTUATION, SYMBOL = 7, 8
#: Bit of a class: the code point is in the range of Han and kana.
HAN_KANA = 16


@kernel
def piece_end_deepseek(state, start, end):
    """End of the piece at `start`: a run of Han and kana, or everything up to one or to a number.

    It is `start` itself where a number stands. A piece has many words: looking for its end at each of them
    would take quadratic time.
    """
    at = start
    first_kind = -1
    while at < end:
        decoded = decode(at)
        kind = class_of(state, decoded >> 3)
        if kind & CATEGORY == NUMBER:
            break
        if first_kind < 0:
            first_kind = kind & HAN_KANA
        elif kind & HAN_KANA != first_kind:
            break
        at += decoded & 7
    return at


@kernel
def _run_end(state, at, end, low, high):
    """End of the run of characters at `at` whose category is `low` to `high`."""
    while at < end:
        seen = category_at(state, at)
        if seen >> 3 < low or seen >> 3 > high:
            break
        at += seen & 7
    return at


@kernel
def _match_end(state, start, end):
    """End of the third split's match at `start`, `start` itself if it has none there."""
    first = load_u8(start)
    seen = category_at(state, start)
    category = seen >> 3
    after_first = start + (seen & 7)
    signs = category == PUNCTUATION or category == SYMBOL
    if signs and first < 0x80:
        at = after_first
        while at < end and 0x61 <= load_u8(at) | 0x20 <= 0x7A:
            at += 1
        if at > after_first:
            return at
    if not signs:
        # Letters are no prefix of letters: both readings of the optional character end at the same place.
        if not is_line_end(first):
            at = _run_end(state, after_first, end, UPPER, MARK)
            if at > after_first:
                return at
        if category >= UPPER and category <= MARK:
            return after_first
    at = after_first if first == 0x20 else start
    stop = _run_end(state, at, end, PUNCTUATION, SYMBOL)
    if stop > at:
        while stop < end and is_line_end(load_u8(stop)):
            stop += 1
        return stop
    if category == SPACE:
        return white_space_end(state, start, end)
    return start


@kernel
def word_end_deepseek(state, start, piece):
    """End of the word at `start` in a piece that ends at `piece`."""
    stop = _match_end(state, start, piece)
    if stop > start:
        return stop
    while stop < piece and _match_end(state, stop, piece) == stop:
        stop += decode(stop) & 7
    return stop
