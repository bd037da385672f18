"""Character classes of 64 bytes at a time, as bit masks.

Every byte of a character carries the character's class, so that runs of a class are runs of bits.
"""

from tokenizer.kernels.jit import kernel
from tokenizer.kernels.layout import BULK_LETTERS, CLASS_BLOCKS, CLASS_MASK, CLASSES, FLAGS, word
from tokenizer.kernels.memory import (
    ascii_digits,
    ascii_letters,
    ascii_white_space,
    continuations,
    leads_of_2_byte_letters,
    leads_of_3_byte_letters,
    load_u8,
    load_u16,
    not_ascii,
    shift_right,
    trailing_zeros,
)

#: Classes of the splitters that work on blocks; `CLASSES` holds these for them.
OTHER, LETTER, NUMBER, SPACE = 0, 1, 2, 3


@kernel
def decode(text):
    """Code point and length of the UTF-8 character at `text`, as ``code_point << 3 | length``."""
    first = load_u8(text)
    if first < 0x80:
        return (first << 3) | 1
    if first < 0xE0:
        return ((((first & 0x1F) << 6) | (load_u8(text + 1) & 0x3F)) << 3) | 2
    middle = ((load_u8(text + 1) & 0x3F) << 6) | (load_u8(text + 2) & 0x3F)
    if first < 0xF0:
        return ((((first & 0x0F) << 12) | middle) << 3) | 3
    return ((((first & 0x07) << 18) | (middle << 6) | (load_u8(text + 3) & 0x3F)) << 3) | 4


@kernel
def class_of(state, code_point):
    """Class of a code point in the vocabulary's class table."""
    block = load_u16(word(state, CLASS_BLOCKS) + 2 * (code_point >> 8))
    return load_u8(word(state, CLASSES) + (block << 8) + (code_point & 0xFF))


@kernel
def classify(state, text, valid, spill):
    """Masks of one block of 64 bytes.

    Parameters
    ----------
    text : address of the block
    valid : mask of the bytes that belong to the text
    spill : what the block before returned: bytes at the start of this block that end a character of it

    Returns
    -------
    letters, numbers, white : masks
    leads : mask of the first bytes of characters
    spill : for the next block, ``class << 2 | bytes``
    """
    letters = ascii_letters(text)
    numbers = ascii_digits(text)
    white = ascii_white_space(text)
    wide = not_ascii(text) & valid
    leads = -1
    after = 0
    if wide != 0:
        leads = ~continuations(text)
        carried = (1 << (spill & 3)) - 1
        kind = spill >> 2
        if kind == LETTER:
            letters |= carried
        elif kind == NUMBER:
            numbers |= carried
        elif kind == SPACE:
            white |= carried
        todo = wide & leads
        if word(state, FLAGS) & BULK_LETTERS != 0:
            three = leads_of_3_byte_letters(text) & todo
            two = leads_of_2_byte_letters(text) & todo
            todo &= ~(three | two)
            both = three | two
            letters |= both | (both << 1) | (three << 2)
            # at most one character crosses the end: its first byte is byte 63, or byte 62 of three
            cut = (shift_right(three, 63) << 1) | shift_right(both, 63) | (shift_right(three, 62) & 1)
            if cut != 0:
                spilled = 1
                if three < 0:
                    spilled = 2
                after = (LETTER << 2) | spilled
        while todo != 0:
            at = trailing_zeros(todo)
            todo &= todo - 1
            decoded = decode(text + at)
            length = decoded & 7
            kind = class_of(state, decoded >> 3) & CLASS_MASK
            bits = ((1 << length) - 1) << at
            if kind == LETTER:
                letters |= bits
            elif kind == NUMBER:
                numbers |= bits
            elif kind == SPACE:
                white |= bits
            if at + length > 64:
                after = (kind << 2) | (at + length - 64)
    return letters & valid, numbers & valid, white & valid, leads, after
