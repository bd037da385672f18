"""Words of the o200k family (GPT-4o, and tekken without contractions), one word at a time.

With ``U = [\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]``, ``W = [\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]``,
``P = [^\\r\\n\\p{L}\\p{N}]`` and an optional contraction c, letters are ``P?U*W+c|P?U+W*c``; then
``\\p{N}{1,3}``, `` ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*`` and the usual rules of white space.
Marks are in U, in W, in P and in the punctuation class.
"""

from tokenizer.kernels.blocks import class_of, decode
from tokenizer.kernels.jit import kernel
from tokenizer.kernels.layout import CONTRACTIONS, FLAGS, MAX_DIGITS, word
from tokenizer.kernels.memory import load_u8
from tokenizer.kernels.split_cl100k import contraction_any_case

# Categories of `tokenizer.unicode_classes`, which the class tables of this family hold as they are.
UPPER, LOWER, LETTER, MARK, NUMBER, SPACE = 1, 2, 3, 4, 5, 9
#: Mask of the category in a class; DeepSeek's tables have another bit above it.
CATEGORY = 15


@kernel
def category_at(state, text):
    """Category and length of the character at `text`, as ``category << 3 | length``."""
    decoded = decode(text)
    return ((class_of(state, decoded >> 3) & CATEGORY) << 3) | (decoded & 7)


@kernel
def is_line_end(byte):
    """Whether `byte` is carriage return or line feed."""
    return byte == 0x0A or byte == 0x0D


@kernel
def white_space_end(state, start, end):
    """End of ``\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`` at `start`, a white-space character."""
    at = start
    last = start
    after_line_end = 0
    while at < end:
        seen = category_at(state, at)
        if seen >> 3 != SPACE:
            break
        last = at
        at += seen & 7
        if is_line_end(load_u8(last)):
            after_line_end = at
    if after_line_end != 0:
        return after_line_end
    if at < end and last > start:
        return last
    return at


@kernel
def digits_end(state, at, end, max_digits):
    """End of ``\\p{N}{1,max_digits}`` at `at`."""
    for _ in range(max_digits):
        if at >= end:
            break
        seen = category_at(state, at)
        if seen >> 3 != NUMBER:
            break
        at += seen & 7
    return at


@kernel
def _lower_end(state, at, end):
    """End of ``W*`` at `at`."""
    while at < end:
        seen = category_at(state, at)
        category = seen >> 3
        if category != LOWER and category != LETTER and category != MARK:
            break
        at += seen & 7
    return at


@kernel
def _upper_then_lower(state, start, end, needs_lower):
    """End of ``U*W+`` (`needs_lower`) or ``U+W*`` at `start`; `start` if it does not match."""
    at = start
    after_caseless = start
    while at < end:
        seen = category_at(state, at)
        category = seen >> 3
        if category != UPPER and category != LETTER and category != MARK:
            break
        at += seen & 7
        if category != UPPER:
            after_caseless = at
    stop = _lower_end(state, at, end)
    if stop > at and (needs_lower or at > start):
        return stop
    # U took everything; W+ gets back the last character that is also in W, U+W* is content.
    return after_caseless if needs_lower else at


@kernel
def _letters_end(state, start, after_prefix, end):
    """End of the two alternatives of letters at `start`; `start` if neither matches.

    `after_prefix` is the position after the optional character in front, or `start` if there can be none.
    """
    for needs_lower in range(1, -1, -1):
        if after_prefix > start:
            stop = _upper_then_lower(state, after_prefix, end, needs_lower)
            if stop > after_prefix:
                return stop
        stop = _upper_then_lower(state, start, end, needs_lower)
        if stop > start:
            return stop
    return start


@kernel
def word_end_o200k(state, start, end):
    """End of the word at `start` in a text that ends at `end`."""
    seen = category_at(state, start)
    category = seen >> 3
    after_first = start + (seen & 7)
    first = load_u8(start)
    if category == NUMBER:
        return digits_end(state, start, end, word(state, MAX_DIGITS))
    prefix = category != UPPER and category != LOWER and category != LETTER and not is_line_end(first)
    stop = _letters_end(state, start, after_first if prefix else start, end)
    if stop > start:
        if word(state, FLAGS) & CONTRACTIONS != 0 and stop < end and load_u8(stop) == 0x27:
            stop += contraction_any_case(stop, end - stop)
        return stop
    at = after_first if first == 0x20 else start
    punctuation = at
    while at < end:
        seen = category_at(state, at)
        category = seen >> 3
        if category == SPACE or category == NUMBER or (category >= UPPER and category <= LETTER):
            break
        at += seen & 7
    if at > punctuation:
        while at < end and (is_line_end(load_u8(at)) or load_u8(at) == 0x2F):
            at += 1
        return at
    return white_space_end(state, start, end)
