"""Filling the tables: hash tables, tries, and the merge that forms each token.

These take NumPy arrays and check nothing; `tables` sizes the arrays. Inserts are in the order of the keys
given, and every table has a power of two of lines or slots, of which at least a fourth stay empty.
"""

import numpy as np

from tokenizer.kernels.jit import entry
from tokenizer.kernels.layout import GOLDEN, HAS_BYTES, HAS_WIDE, LAST_LEFT, LAST_RIGHT, MIX, OUT, word
from tokenizer.kernels.memory import load_i32, load_i64, shift_right
from tokenizer.kernels.merge import first_ids, merge_by_rank, pair_rank


@entry("void(int64[:], int64[:, :], int64)")
def insert_pairs(entries, lines, shift):
    """Pairs ``pair << 24 | rank`` into lines of eight; the last of equal pairs counts."""
    mask = lines.shape[0] - 1
    for entry_word in entries:
        pair = entry_word >> 24
        line = shift_right(pair * GOLDEN, shift)
        while True:
            placed = False
            for lane in range(8):
                here = lines[line, lane]
                if here == -1 or here >> 24 == pair:
                    lines[line, lane] = entry_word
                    placed = True
                    break
            if placed:
                break
            line = (line + 1) & mask


@entry("void(int64[:], int64[:], int64)")
def insert_edges(entries, slots, shift):
    """Trie edges ``key << 24 | child`` into open slots."""
    mask = slots.shape[0] - 1
    for entry_word in entries:
        slot = shift_right(shift_right(entry_word, 24) * GOLDEN, shift)
        while slots[slot] != -1:
            slot = (slot + 1) & mask
        slots[slot] = entry_word


@entry("void(int64[:], int64[:], int32[:], int32[:], int64, int64[:, :], int32[:, :], int64)")
def insert_words(low, high, lengths, ids, per_line, keys, values, shift):
    """Words of up to 16 bytes into lines of five (8 bytes) or three (16 bytes).

    `keys` and `values` are the same lines seen as int64 and as int32; the last int32 of a line says that it
    is full and that the search goes on in the next.
    """
    mask = keys.shape[0] - 1
    two_words = per_line == 3
    first_value = 12 if two_words else 10
    for i in range(low.shape[0]):
        hashed = low[i] * GOLDEN
        if two_words:
            hashed = (low[i] ^ (high[i] * MIX)) * GOLDEN
        line = shift_right(hashed, shift)
        while True:
            lane = 0
            while lane < per_line and values[line, first_value + lane] != 0:
                lane += 1
            if lane < per_line:
                break
            values[line, 15] = 1
            line = (line + 1) & mask
        keys[line, lane] = low[i]
        if two_words:
            keys[line, 3 + lane] = high[i]
        values[line, first_value + lane] = np.int32((np.int64(lengths[i]) << 24) | ids[i])


@entry("void(uint8[:], int64[:], int64[:], int64[:], int64[:, :], int64)")
def insert_long_words(blob, offsets, lengths, ids, slots, shift):
    """Words of more than 16 bytes, whose bytes stand in `blob` at `offsets`, into slots (hash, entry)."""
    mask = slots.shape[0] - 1
    for i in range(ids.shape[0]):
        hashed = lengths[i]
        at = 0
        while at < lengths[i]:
            part = np.int64(0)
            for b in range(min(8, lengths[i] - at)):
                part |= np.int64(blob[offsets[i] + at + b]) << (8 * b)
            hashed = (hashed ^ part) * GOLDEN
            hashed ^= shift_right(hashed, 29)
            at += 8
        if lengths[i] & 7 == 0:  # the kernel hashes the empty rest, too
            hashed = hashed * GOLDEN
            hashed ^= shift_right(hashed, 29)
        slot = shift_right(hashed * GOLDEN, shift)
        while slots[slot, 1] != -1:
            slot = (slot + 1) & mask
        slots[slot, 0] = hashed
        slots[slot, 1] = (offsets[i] << 24) | ids[i]


@entry(
    "UniTuple(int64, 2)(uint8[:], int64[:], int32[:], int64, int32[:], int32[:], int64[:], "
    "int32[:], int64[:], int32[:])"
)
def build_trie(blob, offsets, order, vocab, prefixes, root, edges, wide_root, wide_edges, flags):
    """Trie of the tokens in `order`, which is sorted by their bytes.

    The node of a token is its id, inner nodes follow from `vocab` on. `root` gets the nodes of two bytes,
    `edges` the deeper ones, and `prefixes` the longest proper prefix of each token that is a token, or -1.
    `wide_root` and `wide_edges` are the same for whole 3-byte characters, and `flags` says of each node they
    lead to how tokens go on from it. Returns the numbers of `edges` and of `wide_edges`.
    """
    inner = vocab
    count = wide_count = 0
    depth = 0
    path = np.empty(1 << 16, np.int64)
    token_at = np.empty(1 << 16, np.int64)  # longest token on the path to each depth
    token_at[0] = -1
    before = -1
    for token in order:
        start = offsets[token]
        length = offsets[token + 1] - start
        shared = 0
        if before >= 0:
            limit = min(depth, length)
            while shared < limit and blob[offsets[before] + shared] == blob[start + shared]:
                shared += 1
        for at in range(shared, length):
            if at + 1 == length:
                node = np.int64(token)
                prefixes[token] = token_at[at]
                token_at[at + 1] = node
            else:
                node = inner
                inner += 1
                token_at[at + 1] = token_at[at]
            if at == 1:
                root[np.int64(blob[start]) | (np.int64(blob[start + 1]) << 8)] = node
            elif at > 1:
                edges[count] = (((path[at] << 8) | blob[start + at]) << 24) | node
                count += 1
            path[at + 1] = node
        at = 0
        while at + 3 <= length and blob[start + at] & 0xF0 == 0xE0:
            character = np.int64(blob[start + at] & 0x0F) << 12
            character |= np.int64(blob[start + at + 1] & 0x3F) << 6
            character |= np.int64(blob[start + at + 2] & 0x3F)
            if at == 0:
                wide_root[character] = path[3]
            else:
                flags[path[at]] |= HAS_WIDE
                if at + 3 > shared:
                    wide_edges[wide_count] = (((path[at] << 16) | character) << 24) | path[at + 3]
                    wide_count += 1
            at += 3
        if 0 < at < length:
            flags[path[at]] |= HAS_BYTES
        depth = length
        before = token
    return count, wide_count


@entry("void(int64, int64, int64[:], int32[:], int32[:, :])")
def find_forming_merges(state, text, offsets, ids, forming):
    """The two ids and the rank of the merge that completes each of `ids` from its bytes.

    `forming` keeps -1 for ids that merging does not give. `text` is the address of all tokens' bytes.
    """
    out = word(state, OUT)
    for token in ids:
        count = first_ids(state, text + offsets[token], offsets[token + 1] - offsets[token])
        stop = merge_by_rank(state, count, out)
        if stop - out == 4 and load_i32(out) == token and count > 1:
            left = load_i64(state + 8 * LAST_LEFT)
            right = load_i64(state + 8 * LAST_RIGHT)
            forming[token, 0] = left
            forming[token, 1] = right
            forming[token, 2] = pair_rank(state, left, right)
