"""Words of the cl100k family (Llama-3, Qwen, cl100k_base), as bit arithmetic.

The pattern is `splitters.LLAMA3`. Below, *other* is ``[^\\s\\p{L}\\p{N}]`` and *blank* white space
without line ends:

- Letters take one blank, or a run of others that is one character long and follows no space, in front.
- A run of others takes a space in front and all line ends behind (*swallowed* ones).
- A run of white space is cut after its last line end; what follows that gives its last character away.
"""

from tokenizer.kernels.blocks import classify
from tokenizer.kernels.jit import kernel
from tokenizer.kernels.layout import BLANKS, MAX_DIGITS, STARTS, SWALLOWED, word
from tokenizer.kernels.memory import (
    apostrophes,
    leading_zeros,
    leads_of_2,
    leads_of_3,
    leads_of_4,
    line_ends,
    load_i64,
    load_u8,
    not_ascii,
    shift_right,
    spaces,
    store_i64,
    trailing_zeros,
)
from tokenizer.kernels.split_gpt2 import lead_of_last


@kernel
def contraction_any_case(text, length):
    """Bytes of the English contraction at `text` in any case, 0 if there is none.

    U+017F is a long s, which is equal to s without case.
    """
    if length < 2:
        return 0
    first = load_u8(text + 1) | 0x20
    if first == 0x73 or first == 0x74 or first == 0x6D or first == 0x64:  # s t m d
        return 2
    if length >= 3:
        second = load_u8(text + 2) | 0x20
        if second == 0x65 and (first == 0x72 or first == 0x76):  # re ve
            return 3
        if first == 0x6C and second == 0x6C:  # ll
            return 3
        if load_u8(text + 1) == 0xC5 and load_u8(text + 2) == 0xBF:
            return 3
    return 0


@kernel
def _unmark_blanks_before(state, text, k, at):
    """Take back the start of the run of blanks that ends before bit `at` of block `k`, a line end.

    The run was marked as following a line end; as one follows it too, all are one word, unless the line end
    before the run was swallowed by the word before.
    """
    blanks_at = word(state, BLANKS)
    others = ~load_i64(blanks_at + (k << 3)) & ((1 << at) - 1)
    while others == 0 and k > 0:
        k -= 1
        others = ~load_i64(blanks_at + (k << 3))
    start = (k << 6) + 64 - leading_zeros(others)
    before = start - 1
    if before < 0:
        return
    byte = load_u8(text + before)
    swallowed = load_i64(word(state, SWALLOWED) + ((before >> 6) << 3))
    if (byte == 0x0A or byte == 0x0D) and (swallowed >> (before & 63)) & 1 == 0:
        block = word(state, STARTS) + ((start >> 6) << 3)
        store_i64(block, load_i64(block) & ~(1 << (start & 63)))


@kernel
def _group_starts(numbers, leads, was_number, digits, max_digits):
    """Starts of groups of digits, and the digits in the group that reaches the end of the block.

    `digits` counts those in the group that reached the end of the block before.
    """
    todo = numbers & leads
    if max_digits == 1:
        return todo, 0
    run_starts = numbers & ~((numbers << 1) | was_number)
    starts = 0
    while todo != 0:
        digit = todo & -todo
        todo &= todo - 1
        if run_starts & digit != 0 or digits == max_digits:
            digits = 0
        if digits == 0:
            starts |= digit
        digits += 1
    return starts, digits


@kernel
def mark_words_cl100k(state, text, length):
    """Set in `STARTS` a bit for each byte of `text` at which a word starts."""
    starts_at = word(state, STARTS)
    blanks_at = word(state, BLANKS)
    swallowed_at = word(state, SWALLOWED)
    max_digits = word(state, MAX_DIGITS)
    blocks = (length + 63) >> 6
    last_valid = shift_right(-1, (64 - (length & 63)) & 63)
    valid = -1 if blocks > 1 else last_valid
    letters, numbers, white, leads, spill = classify(state, text, valid, 0)
    # Bit 0 of these belongs to the last byte of the block before; `was_tail` has up to three bits.
    was_letter = was_number = was_white = was_other = was_space = was_blank = was_end = 0
    was_swallowed = was_single = was_tail = 0
    digits = set_next = 0
    for k in range(blocks):
        block = text + (k << 6)
        next_letters = next_numbers = next_white = next_leads = next_spill = next_valid = 0
        if k + 1 < blocks:
            next_valid = -1 if k + 2 < blocks else last_valid
            next_letters, next_numbers, next_white, next_leads, next_spill = classify(
                state, block + 64, next_valid, spill
            )
        other = ~(letters | numbers | white) & valid
        next_other = ~(next_letters | next_numbers | next_white) & next_valid
        space = spaces(block) & valid
        ends = line_ends(block) & valid
        blank = white & ~ends
        after_blank = (blank << 1) | was_blank
        after_other = (other << 1) | was_other

        # Others: a run starts at its space if it has one.
        free = other & ~after_other & ~((space << 1) | was_space)
        other_ends = other & ~(shift_right(other, 1) | (next_other << 63))
        tails = free | was_tail  # last bytes of the characters that start free runs
        next_tail = 0
        if not_ascii(block) & free != 0:
            two, three, four = leads_of_2(block) & free, leads_of_3(block) & free, leads_of_4(block) & free
            tails = (free & ~(two | three | four)) | (two << 1) | (three << 2) | (four << 3) | was_tail
            next_tail = shift_right(two, 63) | shift_right(three, 62) | shift_right(four, 61)
        single = tails & other_ends

        # Letters: one blank or single other before them is part of their word.
        after_single = (single << 1) | was_single
        starts = letters & ~((letters << 1) | was_letter) & ~(after_blank | after_single)
        starts |= free | set_next

        if numbers != 0:
            groups, digits = _group_starts(numbers, leads, was_number, digits, max_digits)
            starts |= groups

        # White space: line ends after others are swallowed, up to the end of their run.
        flood = ends & (after_other | was_swallowed)
        flooded = ends + flood  # the carry runs through the run and sets the bit after it
        swallowed = ends & ~flooded
        starts |= white & ~((white << 1) | was_white) & ~flood
        starts |= white & ((flooded & ~ends) | (was_swallowed & ~ends))
        starts |= blank & ((ends << 1) | was_end)
        follows = letters | numbers | other
        next_follows = next_letters | next_numbers | next_other
        last_blank = blank & ~(shift_right(white, 1) | (next_white << 63))
        last_blank &= shift_right(follows, 1) | (next_follows << 63)
        wide_blank = last_blank & ~leads
        starts |= last_blank & leads
        while wide_blank != 0:
            at = lead_of_last(block, trailing_zeros(wide_blank))
            wide_blank &= wide_blank - 1
            if at >= 0:
                starts |= 1 << at
            else:
                previous = starts_at + ((k - 1) << 3)
                store_i64(previous, load_i64(previous) | (1 << (64 + at)))

        set_next = 0
        candidates = apostrophes(block) & free & other_ends
        candidates &= shift_right(letters, 1) | (next_letters << 63)
        while candidates != 0:
            at = trailing_zeros(candidates)
            candidates &= candidates - 1
            size = contraction_any_case(block + at, length - (k << 6) - at)
            end = at + size
            if size != 0 and (k << 6) + end < length:
                if end >= 64:
                    set_next |= 1 << (end - 64)
                else:
                    starts |= 1 << end

        store_i64(starts_at + (k << 3), starts)
        store_i64(blanks_at + (k << 3), blank)
        store_i64(swallowed_at + (k << 3), swallowed)
        between = ends & after_blank
        while between != 0:
            _unmark_blanks_before(state, text, k, trailing_zeros(between))
            between &= between - 1

        was_letter, was_number, was_white = _top(letters), _top(numbers), _top(white)
        was_other, was_space, was_blank, was_end = _top(other), _top(space), _top(blank), _top(ends)
        was_swallowed, was_single, was_tail = _top(swallowed), _top(single), next_tail
        letters, numbers, white, leads, spill = next_letters, next_numbers, next_white, next_leads, next_spill
        valid = next_valid


@kernel
def _top(mask):
    """Bit 63 of `mask`."""
    return shift_right(mask, 63)
