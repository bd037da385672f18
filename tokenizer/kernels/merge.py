"""Merging a word's bytes to tokens.

Two ways, equal in result:

`merge_by_rank` is the definition: the adjacent pair of the lowest rank merges next, leftmost first, here with
a heap and a linked list (O(n log n)). It also makes the tables.

`merge_by_match` takes the longest token at each position and steps back where two neighbours could not stand
next to each other (linear). Two tokens can when no merge across their boundary comes before the merges that
form them; README.md has the argument, and when a vocabulary permits it.
"""

from tokenizer.kernels.blocks import decode
from tokenizer.kernels.jit import kernel
from tokenizer.kernels.layout import (
    BYTE_IDS,
    CHARACTER_BLOCKS,
    CHARACTER_IDS,
    DEAD,
    DOUBLE_JOINS,
    DOUBLE_SHIFT,
    FALLBACK,
    FLAGS,
    GOLDEN,
    HAS_BYTES,
    HAS_WIDE,
    HEAP,
    IDS,
    LAST_LEFT,
    LAST_RIGHT,
    LENGTHS,
    LINKS,
    MERGED,
    NO_RANK,
    NODE_MASK,
    NODES,
    PAIRS,
    PAIRS_SHIFT,
    RANKS,
    ROOT,
    SINGLE_JOINS,
    TRIE,
    TRIE_SHIFT,
    VOCAB,
    WIDE_ROOT,
    WIDE_SHIFT,
    WIDE_TRIE,
    word,
)
from tokenizer.kernels.memory import (
    find_pair,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    shift_right,
    store_i32,
    store_i64,
    trailing_zeros,
)

_RANK_BITS = 24
_RANK_MASK = (1 << _RANK_BITS) - 1
_ID_BITS = 20


@kernel
def pair_rank(state, left, right):
    """Rank of the merge of two ids, `NO_RANK` if they do not merge."""
    pair = (left << _ID_BITS) | right
    line = word(state, PAIRS) + (shift_right(pair * GOLDEN, word(state, PAIRS_SHIFT)) << 6)
    while True:
        found = find_pair(line, pair)
        if found != 0:
            return load_i64(line + (trailing_zeros(found) << 3)) & _RANK_MASK
        if load_i64(line + 56) == -1:  # a line that is not full ends the search
            return NO_RANK
        line += 64


@kernel
def _heap_push(heap, count, key):
    at = count
    while at > 0:
        parent = (at - 1) >> 1
        above = load_i64(heap + 8 * parent)
        if above <= key:
            break
        store_i64(heap + 8 * at, above)
        at = parent
    store_i64(heap + 8 * at, key)
    return count + 1


@kernel
def _heap_pop(heap, count):
    """Remove the smallest key, which the caller has read; returns the new count."""
    count -= 1
    if count > 0:
        key = load_i64(heap + 8 * count)
        at = 0
        while True:
            child = 2 * at + 1
            if child >= count:
                break
            below = load_i64(heap + 8 * child)
            if child + 1 < count:
                other = load_i64(heap + 8 * child + 8)
                if other < below:
                    below = other
                    child += 1
            if key <= below:
                break
            store_i64(heap + 8 * at, below)
            at = child
        store_i64(heap + 8 * at, key)
    return count


@kernel
def character_id(state, code_point):
    """Id of a character in a vocabulary with byte fallback, or -1."""
    block = load_u16(word(state, CHARACTER_BLOCKS) + 2 * (code_point >> 8))
    return load_i32(word(state, CHARACTER_IDS) + (((block << 8) + (code_point & 0xFF)) << 2))


@kernel
def first_ids(state, text, length):
    """Ids that merging a word starts from, into `IDS`; bytes without an id are dropped. Returns their number.

    They are the word's bytes, or with byte fallback its characters, which then all have an id.
    """
    ids = word(state, IDS)
    byte_ids = word(state, BYTE_IDS)
    count = 0
    if word(state, FLAGS) & FALLBACK != 0:
        end = text + length
        while text < end:
            decoded = decode(text)
            text += decoded & 7
            store_i32(ids + 4 * count, character_id(state, decoded >> 3))
            count += 1
        return count
    for i in range(length):
        token = load_i32(byte_ids + 4 * load_u8(text + i))
        if token >= 0:
            store_i32(ids + 4 * count, token)
            count += 1
    return count


@kernel
def merge_by_rank(state, count, out):
    """Merge the `count` ids in `IDS` and write the result to `out`; returns the address after it.

    The two ids that merged last are left in `LAST_LEFT` and `LAST_RIGHT`.
    """
    ids = word(state, IDS)
    ranks = word(state, RANKS)
    links = word(state, LINKS)
    heap = word(state, HEAP)
    merged_of = word(state, MERGED)
    last_left = last_right = -1
    waiting = 0
    for i in range(count):
        store_i32(links + 8 * i, i - 1)
        store_i32(links + 8 * i + 4, i + 1)
        rank = NO_RANK
        if i + 1 < count:
            rank = pair_rank(state, load_i32(ids + 4 * i), load_i32(ids + 4 * i + 4))
        store_i32(ranks + 4 * i, rank)
        if rank != NO_RANK:
            waiting = _heap_push(heap, waiting, (rank << 32) | i)
    while waiting > 0:
        top = load_i64(heap)
        waiting = _heap_pop(heap, waiting)
        rank = top >> 32
        at = top & 0xFFFFFFFF
        if load_i32(ranks + 4 * at) != rank:
            continue  # one of the two was merged with another neighbour meanwhile
        right = load_i32(links + 8 * at + 4)
        after = load_i32(links + 8 * right + 4)
        before = load_i32(links + 8 * at)
        merged = load_i32(merged_of + 4 * rank)
        last_left = load_i32(ids + 4 * at)
        last_right = load_i32(ids + 4 * right)
        store_i32(ids + 4 * at, merged)
        store_i32(ranks + 4 * right, NO_RANK)
        store_i32(links + 8 * at + 4, after)
        rank = NO_RANK
        if after < count:
            store_i32(links + 8 * after, at)
            rank = pair_rank(state, merged, load_i32(ids + 4 * after))
        store_i32(ranks + 4 * at, rank)
        if rank != NO_RANK:
            waiting = _heap_push(heap, waiting, (rank << 32) | at)
        if before >= 0:
            rank = pair_rank(state, load_i32(ids + 4 * before), merged)
            store_i32(ranks + 4 * before, rank)
            if rank != NO_RANK:
                waiting = _heap_push(heap, waiting, (rank << 32) | before)
    store_i64(state + 8 * LAST_LEFT, last_left)
    store_i64(state + 8 * LAST_RIGHT, last_right)
    at = 0
    while at < count:
        store_i32(out, load_i32(ids + 4 * at))
        out += 4
        at = load_i32(links + 8 * at + 4)
    return out


@kernel
def _walk_bytes(state, text, at, length, node, best):
    """Longest token on the trie's path from `node`, which stands for the `at` first bytes of `text`."""
    vocab = word(state, VOCAB)
    trie = word(state, TRIE)
    shift = word(state, TRIE_SHIFT)
    while node >= 0:
        if node < vocab:
            best = node
        if at >= length:
            break
        key = (node << 8) | load_u8(text + at)
        at += 1
        slot = trie + (shift_right(key * GOLDEN, shift) << 3)
        entry = load_i64(slot)
        while entry >= 0 and (entry >> 24) != key:
            slot += 8
            entry = load_i64(slot)
        node = entry & 0xFFFFFF if entry >= 0 else -1
    return best


@kernel
def _wide_character(text):
    """The 16 bits of the code point of a 3-byte UTF-8 character."""
    return ((load_u8(text) & 0x0F) << 12) | ((load_u8(text + 1) & 0x3F) << 6) | (load_u8(text + 2) & 0x3F)


@kernel
def _longest_token(state, text, length):
    """Longest token that `text` starts with; `length` is at least 1 and its first byte has an id.

    Three-byte characters (Han, kana, Hangul) are taken as a whole where tokens have whole ones.
    """
    best = load_i32(word(state, BYTE_IDS) + 4 * load_u8(text))
    if length < 2:
        return best
    vocab = word(state, VOCAB)
    if length >= 3 and load_u8(text) & 0xF0 == 0xE0:
        entry = load_i32(word(state, WIDE_ROOT) + 4 * _wide_character(text))
        node = entry & NODE_MASK
        if entry >= 0 and node < vocab:
            best = node
            at = 3
            trie = word(state, WIDE_TRIE)
            shift = word(state, WIDE_SHIFT)
            while entry & HAS_WIDE != 0 and at + 3 <= length and load_u8(text + at) & 0xF0 == 0xE0:
                key = (node << 16) | _wide_character(text + at)
                slot = trie + (shift_right(key * GOLDEN, shift) << 3)
                found = load_i64(slot)
                while found != -1 and shift_right(found, 24) != key:
                    slot += 8
                    found = load_i64(slot)
                if found == -1:
                    break
                if found & NODE_MASK >= vocab:  # a token may end inside the character
                    return _walk_bytes(state, text, at, length, node, best)
                entry = found & 0xFFFFFF
                node = best = entry & NODE_MASK
                at += 3
            if entry & HAS_BYTES != 0:
                return _walk_bytes(state, text, at, length, node, best)
            return best
    return _walk_bytes(state, text, 2, length, load_i32(word(state, ROOT) + 4 * load_u16(text)), best)


@kernel
def _may_merge_across(state, text):
    """Whether some merge has the bytes before and after `text` at the boundary between its two sides."""
    pair = load_u16(text - 1)
    if (load_u8(word(state, SINGLE_JOINS) + (pair >> 3)) >> (pair & 7)) & 1 != 0:
        return True
    joined = shift_right(load_u32(text - 2) * GOLDEN, word(state, DOUBLE_SHIFT))
    return (load_u8(word(state, DOUBLE_JOINS) + (joined >> 3)) >> (joined & 7)) & 1 != 0


@kernel
def _merges_apart(state, left, right, text, length, out):
    """Whether the `length` bytes at `text` merge to `left` and `right`, by trying; `out` is overwritten."""
    stop = merge_by_rank(state, first_ids(state, text, length), out)
    return stop - out == 8 and load_i32(out) == left and load_i32(out + 4) == right


@kernel
def _can_stand_together(state, left, right, text, out):
    """Whether merging the bytes of `left` and `right` by rank gives these two tokens again.

    `text` is where the bytes of `right` start, after those of `left`.
    """
    if not _may_merge_across(state, text):
        return True
    nodes = word(state, NODES)
    left_formed = load_i32(nodes + 16 * left + 8)
    right_formed = load_i32(nodes + 16 * right + 8)
    if left_formed == NO_RANK or right_formed == NO_RANK:
        lengths = word(state, LENGTHS)
        before = load_i32(lengths + 4 * left)
        length = before + load_i32(lengths + 4 * right)
        return _merges_apart(state, left, right, text - before, length, out)
    # Until which rank the token at each side of the boundary exists before it merges away from it.
    left_until = NO_RANK
    right_until = NO_RANK
    while True:
        # The merge across the boundary happens when both sides are there, and its rank's turn has come.
        rank = max(pair_rank(state, left, right), left_formed, right_formed)
        # Of equal ranks the leftmost merge comes first: the one inside the left token precedes the one
        # across the boundary, which precedes the one inside the right token.
        if rank < left_until and rank <= right_until:
            return rank == NO_RANK
        if left_formed > right_formed:
            left_until = left_formed
            left = load_i32(nodes + 16 * left + 4)
            left_formed = load_i32(nodes + 16 * left + 8)
        else:
            if right_formed < 0:
                return True
            right_until = right_formed
            right = load_i32(nodes + 16 * right)
            right_formed = load_i32(nodes + 16 * right + 8)


@kernel
def merge_by_match(state, text, length, out):
    """Tokens of a word whose bytes all have an id, written to `out`; returns the address after them."""
    nodes = word(state, NODES)
    lengths = word(state, LENGTHS)
    dead = word(state, DEAD)
    for i in range((length >> 6) + 1):
        store_i64(dead + 8 * i, 0)
    first = out
    at = 0
    token = _longest_token(state, text, length)
    while True:
        # A tokenization of the text up to `at` stands before `out`; try `token`, then shorter ones.
        while token >= 0:
            end = at + load_i32(lengths + 4 * token)
            if (load_i64(dead + ((end >> 6) << 3)) >> (end & 63)) & 1 == 0:
                if out == first or _can_stand_together(state, load_i32(out - 4), token, text + at, out):
                    break
            token = load_i32(nodes + 16 * token + 12)
        if token >= 0:
            store_i32(out, token)
            out += 4
            at = end
            if at == length:
                return out
            token = _longest_token(state, text + at, length - at)
        else:
            # Only one tokenization leads to `at`, so nothing that reaches it again can go on.
            block = dead + ((at >> 6) << 3)
            store_i64(block, load_i64(block) | (1 << (at & 63)))
            out -= 4
            token = load_i32(out)
            at -= load_i32(lengths + 4 * token)
            token = load_i32(nodes + 16 * token + 12)
