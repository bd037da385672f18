"""Words of the GPT-2 pattern, and of SmolLM2's, which first isolates every digit, as bit arithmetic.

They are the lower-case contractions ``'s 't 're 've 'm 'll 'd``, and runs of one class (letters, numbers,
others), each with the space before it. A run of white space before a word gives its last character away: to
the word if that is a space, else as a word of its own.
"""

from tokenizer.kernels.blocks import classify
from tokenizer.kernels.jit import kernel
from tokenizer.kernels.layout import FLAGS, ISOLATED_DIGITS, STARTS, word
from tokenizer.kernels.memory import (
    apostrophes,
    load_i64,
    load_u8,
    shift_right,
    spaces,
    store_i64,
    trailing_zeros,
)


@kernel
def contraction(text, length):
    """Bytes of the lower-case English contraction at `text`, 0 if there is none."""
    if length >= 2:
        first = load_u8(text + 1)
        if first == 0x73 or first == 0x74 or first == 0x6D or first == 0x64:  # s t m d
            return 2
        if length >= 3:
            second = load_u8(text + 2)
            if second == 0x65 and (first == 0x72 or first == 0x76):  # re ve
                return 3
            if first == 0x6C and second == 0x6C:  # ll
                return 3
    return 0


@kernel
def lead_of_last(text, position):
    """Position of the first byte of the character whose last byte is at `position`."""
    while load_u8(text + position) & 0xC0 == 0x80:
        position -= 1
    return position


@kernel
def mark_words_gpt2(state, text, length):
    """Set in `STARTS` a bit for each byte of `text` at which a word starts."""
    starts_at = word(state, STARTS)
    isolated = word(state, FLAGS) & ISOLATED_DIGITS
    blocks = (length + 63) >> 6
    last_valid = shift_right(-1, (64 - (length & 63)) & 63)
    valid = -1 if blocks > 1 else last_valid
    letters, numbers, white, leads, spill = classify(state, text, valid, 0)
    space = spaces(text) & valid
    # Bit 0 of these is the last byte of the block before; contraction edits reach into the next block.
    was_letter = was_number = was_white = was_space = was_other = 0
    clear_next = set_next = 0
    for k in range(blocks):
        block = text + (k << 6)
        next_letters = next_numbers = next_white = next_leads = next_spill = next_space = next_valid = 0
        if k + 1 < blocks:
            next_valid = -1 if k + 2 < blocks else last_valid
            next_letters, next_numbers, next_white, next_leads, next_spill = classify(
                state, block + 64, next_valid, spill
            )
            next_space = spaces(block + 64) & next_valid
        other = ~(letters | numbers | white) & valid
        next_other = ~(next_letters | next_numbers | next_white) & next_valid

        letter_starts = letters & ~((letters << 1) | was_letter)
        other_starts = other & ~((other << 1) | was_other)
        if isolated:
            number_starts = numbers & leads
            joinable, follows, next_follows = letters | other, letters | other, next_letters | next_other
        else:
            number_starts = numbers & ~((numbers << 1) | was_number)
            joinable = follows = letters | other | numbers
            next_follows = next_letters | next_other | next_numbers
        after_space = (space << 1) | was_space
        starts = (letter_starts | other_starts | number_starts) & ~(after_space & joinable)
        starts |= white & ~((white << 1) | was_white)
        follows = shift_right(follows, 1) | (next_follows << 63)
        last_white = white & ~(shift_right(white, 1) | (next_white << 63)) & follows
        wide_white = last_white & ~leads
        if wide_white != 0:
            last_white &= leads
            while wide_white != 0:
                at = lead_of_last(block, trailing_zeros(wide_white))
                wide_white &= wide_white - 1
                if at >= 0:
                    last_white |= 1 << at
                else:
                    previous = starts_at + ((k - 1) << 3)
                    store_i64(previous, load_i64(previous) | (1 << (64 + at)))
        starts |= last_white

        candidates = apostrophes(block) & other_starts & starts
        candidates &= shift_right(letters, 1) | (next_letters << 63)
        starts = (starts & ~clear_next) | set_next
        clear_next = set_next = 0
        while candidates != 0:
            at = trailing_zeros(candidates)
            candidates &= candidates - 1
            size = contraction(block + at, length - (k << 6) - at)
            if size == 0:
                continue
            if at == 63:
                clear_next = 1
            else:
                starts &= ~(1 << (at + 1))
            end = at + size
            if (k << 6) + end < length:
                if end >= 64:
                    set_next |= 1 << (end - 64)
                else:
                    starts |= 1 << end
        store_i64(starts_at + (k << 3), starts)

        was_letter, was_number = shift_right(letters, 63), shift_right(numbers, 63)
        was_white, was_space = shift_right(white, 63), shift_right(space, 63)
        was_other = shift_right(other, 63)
        letters, numbers, white, leads, spill = next_letters, next_numbers, next_white, next_leads, next_spill
        space, valid = next_space, next_valid
