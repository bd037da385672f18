"""From a vocabulary to its tables."""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from tokenizer.errors import TokenizerError
from tokenizer.kernels import build, layout
from tokenizer.kernels.layout import GOLDEN, NO_RANK
from tokenizer.kernels.memory import PADDING
from tokenizer.kernels.split_deepseek import HAN_KANA
from tokenizer.splitters import Family, Splitter
from tokenizer.tables import Tables, Workspace, aligned
from tokenizer.unicode_classes import CATEGORIES, CODE_POINTS, categories, word_characters
from tokenizer.vocabulary import Vocabulary

_LINE = 64
#: What `kernels.memory.rare_bytes` finds.
_RARE_BYTES = {*range(0x20)} - {0x09, 0x0A, 0x0D} | {0xC0, 0xC1, *range(0xF1, 0x100)}


class _Builder:
    """Collects tables, then lays them out in one buffer."""

    def __init__(self) -> None:
        self.words = np.zeros(layout.TABLE_WORDS, np.int64)
        self.parts: dict[int, np.ndarray] = {}

    def put(self, index: int, array: np.ndarray) -> None:
        self.parts[index] = array

    def tables(self) -> Tables:
        sizes = {i: -(-a.nbytes // _LINE) * _LINE + _LINE for i, a in self.parts.items()}
        buffer = aligned(sum(sizes.values()), np.uint8)
        words = self.words.copy()
        at = 0
        for i, array in self.parts.items():
            buffer[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            words[i] = at
            at += sizes[i]
        return Tables(buffer, words, tuple(self.parts))


def build_tables(vocabulary: Vocabulary, *, linear: bool = True) -> Tables:
    """Tables of `vocabulary`.

    Parameters
    ----------
    linear : bool
        Merge by longest match where the vocabulary permits it. ``False`` merges by rank always, which
        gives the same ids and which the tests compare with.

    Raises
    ------
    TokenizerError
        If the vocabulary is larger than the tables can hold.
    """
    check_limits(vocabulary)
    b = _Builder()
    _put_parameters(b, vocabulary)
    _put_classes(b, vocabulary.splitter)
    ids = vocabulary.ids_of_bytes()
    reachable = _put_merges(b, vocabulary, ids, linear)
    _put_words(b, vocabulary, ids, reachable)
    _put_added(b, vocabulary)
    return b.tables()


def check_limits(vocabulary: Vocabulary) -> None:
    """Raise `TokenizerError` if `vocabulary` does not fit the fields of the tables."""
    sizes = (
        ("ids", vocabulary.size, layout.MOST_IDS),
        ("ranks of merges", int(vocabulary.ranks.max(initial=-1)) + 1, layout.MOST_RANKS),
        ("bytes in its longest token", max(map(len, vocabulary.tokens), default=0), layout.LONGEST_TOKEN),
        ("ids and bytes", vocabulary.size + sum(map(len, vocabulary.tokens)), layout.NODE_MASK),
    )
    for what, count, most in sizes:
        if count > most:
            raise TokenizerError(f"the vocabulary has {count:,} {what}, and the tables hold {most:,} at most")


def _put_parameters(b: _Builder, vocabulary: Vocabulary) -> None:
    splitter = vocabulary.splitter
    b.words[layout.VOCAB] = vocabulary.size
    b.words[layout.FAMILY] = int(splitter.family)
    b.words[layout.MAX_DIGITS] = splitter.max_digits
    flags = 0
    if splitter.isolated_digits:
        flags |= layout.ISOLATED_DIGITS
    if vocabulary.prepend_space:
        flags |= layout.PREPEND_SPACE
    if splitter.contractions:
        flags |= layout.CONTRACTIONS
    if any(not a.normalized for a in vocabulary.added):
        flags |= layout.RAW_ADDED
    if any(a.normalized for a in vocabulary.added):
        flags |= layout.NORMALIZED_ADDED
    if any(not a.special for a in vocabulary.added):
        flags |= layout.ORDINARY_ADDED
    b.words[layout.FLAGS] = flags
    masks = np.array([[(1 << 8 * min(n, 8)) - 1, (1 << 8 * max(n - 8, 0)) - 1] for n in range(17)], np.uint64)
    b.put(layout.MASKS, masks.view(np.int64))


def _put_classes(b: _Builder, splitter: Splitter) -> None:
    index, blocks, bulk_letters = _class_tables(splitter)
    b.put(layout.CLASS_BLOCKS, index)
    b.put(layout.CLASSES, blocks)
    b.words[layout.FLAGS] |= layout.BULK_LETTERS * bulk_letters


@lru_cache(maxsize=8)
def _class_tables(splitter: Splitter) -> tuple[np.ndarray, np.ndarray, bool]:
    """Block of each 256 code points, the classes of each block, and whether bulk letters are letters."""
    category = categories()
    classes = category.copy()
    if splitter.family in (Family.GPT2, Family.CL100K):
        classes = _block_classes(category, splitter)
    elif splitter.family == Family.DEEPSEEK:
        classes[0x4E00 : 0x9FA5 + 1] |= HAN_KANA
        classes[0x3040 : 0x30FF + 1] |= HAN_KANA
    classes = classes.astype(np.uint8)
    bulk_letters = _bulk_letters_hold(classes)
    classes[category == CATEGORIES["SPACE"]] |= layout.WHITE_BIT
    classes[word_characters()] |= layout.WORD_BIT
    blocks, index = np.unique(classes.reshape(-1, 256), axis=0, return_inverse=True)
    return index.reshape(-1).astype(np.uint16), blocks, bulk_letters


def _block_classes(category: np.ndarray, splitter: Splitter) -> np.ndarray:
    """Classes of `kernels.blocks`: other 0, letter 1, number 2, white space 3."""
    letters = ["UPPER", "LOWER", "LETTER"] + ["MARK"] * splitter.marks_in_words
    numbers = ["NUMBER"] + ["DIGIT_ONLY"] * splitter.isolated_digits
    of_category = np.zeros(len(CATEGORIES), np.uint8)
    of_category[[CATEGORIES[n] for n in letters]] = 1
    of_category[[CATEGORIES[n] for n in numbers]] = 2
    of_category[CATEGORIES["SPACE"]] = 3
    return of_category[category]


def _bulk_letters_hold(classes: np.ndarray) -> bool:
    """Whether all that `memory.leads_of_*_byte_letters` takes for letters are letters."""
    expected = [c for c in range(0xC0, 0x100) if c not in (0xD7, 0xF7)]
    expected += [*range(0x400, 0x480), *range(0x4E00, 0xA000), *range(0xAC00, 0xD780)]
    signs = (0x3040, *range(0x3097, 0x309D), 0x30A0, 0x30FB)
    expected += [c for c in range(0x3040, 0x3100) if c not in signs]
    return bool((classes[expected] == 1).all())


def _lines_for(items: int, per_line: int) -> tuple[int, int]:
    """Number of lines for `items` (a power of two, at most three fourths full) and the shift of its hash."""
    bits = max(1, int(np.ceil(np.log2(max(items, 1) / per_line / 0.75))))
    return 1 << bits, 64 - bits


def _blob(tokens: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    tokens = list(tokens)
    offsets = np.zeros(len(tokens) + 1, np.int64)
    np.cumsum([len(t) for t in tokens], out=offsets[1:])
    return np.frombuffer(b"".join(tokens) + bytes(PADDING), np.uint8).copy(), offsets


def _without_wrap(table: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """`table` and its start once more, up to the first place that `ends` a search: kernels do not wrap."""
    return np.concatenate([table, table[: int(np.argmax(ends)) + 1]])


def _pair_lines(merges: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, int]:
    count, shift = _lines_for(len(merges), 8)
    lines = aligned(8 * count, np.int64, -1).reshape(-1, 8)
    wide = merges.astype(np.int64)
    entries = (((wide[:, 0] << 20) | wide[:, 1]) << 24) | ranks
    build.insert_pairs(entries[::-1].copy(), lines, shift)
    return _without_wrap(lines, lines[:, 7] == -1), shift


def _put_merges(b: _Builder, vocabulary: Vocabulary, ids: dict[bytes, int], linear: bool) -> np.ndarray:
    """Tables of merging; returns which ids merging can give, as bool array."""
    size = vocabulary.size
    merges, ranks = vocabulary.merges, vocabulary.ranks
    byte_ids = np.array([ids.get(bytes([i]), -1) for i in range(256)], np.int32)
    first_ids = byte_ids[byte_ids >= 0]
    if vocabulary.byte_tokens:
        first_ids = _put_characters(b, vocabulary.byte_tokens, ids)
    b.put(layout.BYTE_IDS, byte_ids)
    missing = set(np.flatnonzero(byte_ids < 0).tolist())
    if missing and not vocabulary.byte_tokens:
        b.words[layout.FLAGS] |= layout.HAS_MISSING_BYTES
    if missing <= _RARE_BYTES:
        b.words[layout.FLAGS] |= layout.RARE_MISSING_BYTES
    merged = np.zeros(int(ranks.max(initial=-1)) + 1, np.int32)
    merged[ranks] = merges[:, 2]
    b.put(layout.MERGED, merged)
    lines, shift = _pair_lines(merges, ranks)
    b.put(layout.PAIRS, lines)
    b.words[layout.PAIRS_SHIFT] = shift

    blob, offsets = _blob(vocabulary.tokens)
    b.put(layout.LENGTHS, np.diff(offsets).astype(np.int32))
    forming = np.full((size, 3), -1, np.int32)
    workspace = Workspace(b.tables(), max(1 << 12, int(np.diff(offsets).max(initial=0))))
    build.find_forming_merges(workspace.address, blob.ctypes.data, offsets, np.unique(merges[:, 2]), forming)
    formed = forming[:, 2] >= 0
    reachable = formed.copy()
    reachable[first_ids] = True
    nodes = np.full((size, 4), -1, np.int32)
    nodes[:, :2] = forming[:, :2]
    nodes[:, 2] = _formed_at(forming)
    if linear:
        b.words[layout.FLAGS] |= layout.LINEAR
        # No other merge ever happens: where its two sides stand side by side, they are this token.
        used = np.flatnonzero(formed)
        used = used[np.argsort(forming[used, 2])]
        lines, shift = _pair_lines(np.column_stack([forming[used, :2], used]), forming[used, 2])
        b.put(layout.PAIRS, lines)
        b.words[layout.PAIRS_SHIFT] = shift
        _put_trie(b, vocabulary, blob, offsets, reachable, nodes)
        _put_joins(b, vocabulary.tokens, forming[used, :2])
    b.put(layout.NODES, nodes)
    return reachable


def _put_characters(b: _Builder, byte_tokens: tuple[int, ...], ids: dict[bytes, int]) -> np.ndarray:
    """Tables of byte fallback; returns the ids of single characters."""
    of_character = np.full(CODE_POINTS, -1, np.int32)
    for token, i in ids.items():
        text = token.decode()
        if len(text) == 1:
            of_character[ord(text)] = i
    blocks, index = np.unique(of_character.reshape(-1, 256), axis=0, return_inverse=True)
    b.put(layout.CHARACTER_BLOCKS, index.reshape(-1).astype(np.uint16))
    b.put(layout.CHARACTER_IDS, blocks)
    b.put(layout.FALLBACK_IDS, np.array(byte_tokens, np.int32))
    b.words[layout.FLAGS] |= layout.FALLBACK
    return of_character[of_character >= 0]


def _formed_at(forming: np.ndarray) -> np.ndarray:
    """Rank of the merge that forms each id; -1 for bytes, `NO_RANK` where merges are not in order of rank.

    In order means that every merge below an id's last one has a lower rank than the merge it leads to.
    """
    formed = np.flatnonzero(forming[:, 2] >= 0)
    sides, rank = forming[formed, :2], forming[formed, 2]
    at = forming[:, 2].copy()
    while True:
        out_of_order = at[sides].max(axis=1, initial=-1) >= rank
        if (at[formed[out_of_order]] == NO_RANK).all():
            return at
        at[formed[out_of_order]] = NO_RANK


def _put_trie(
    b: _Builder,
    vocabulary: Vocabulary,
    blob: np.ndarray,
    offsets: np.ndarray,
    reachable: np.ndarray,
    nodes: np.ndarray,
) -> None:
    tokens = vocabulary.tokens
    order = np.array(sorted(np.flatnonzero(reachable).tolist(), key=tokens.__getitem__), np.int32)
    root, wide_root = (np.full(1 << 16, -1, np.int32) for _ in range(2))
    most = int(offsets[-1]) + 1
    edges, wide_edges = (np.empty(most, np.int64) for _ in range(2))
    flags = np.zeros(vocabulary.size + most, np.int32)
    prefixes = np.full(vocabulary.size, -1, np.int32)
    count, wide_count = build.build_trie(
        blob, offsets, order, vocabulary.size, prefixes, root, edges, wide_root, wide_edges, flags
    )
    nodes[:, 3] = prefixes
    b.put(layout.ROOT, root)
    slots, shift = _edge_slots(edges[:count])
    b.put(layout.TRIE, slots)
    b.words[layout.TRIE_SHIFT] = shift
    wide_root[wide_root >= 0] |= flags[wide_root[wide_root >= 0]]
    b.put(layout.WIDE_ROOT, wide_root)
    wide_edges = wide_edges[:wide_count]
    slots, shift = _edge_slots(wide_edges | flags[wide_edges & layout.NODE_MASK])
    b.put(layout.WIDE_TRIE, slots)
    b.words[layout.WIDE_SHIFT] = shift


def _put_joins(b: _Builder, tokens: list[bytes], sides: np.ndarray) -> None:
    """Which bytes can stand at the boundary of a merge; most boundaries in a text have others."""
    single = np.zeros(1 << 13, np.uint8)
    double = set()
    for left, right in ((tokens[a], tokens[b]) for a, b in sides.tolist()):
        if len(left) == 1 or len(right) == 1:
            pair = left[-1] | right[0] << 8
            single[pair >> 3] |= 1 << (pair & 7)
        else:
            double.add(left[-2:] + right[:2])
    bits = max(6, int(np.ceil(np.log2(max(len(double), 1) * 16))))
    joins = np.frombuffer(b"".join(double), np.uint32).astype(np.uint64)
    hashes = (joins * np.uint64(GOLDEN & (1 << 64) - 1)) >> np.uint64(64 - bits)
    marks = np.zeros(1 << bits, np.uint8)
    marks[hashes.astype(np.int64)] = 1
    b.put(layout.SINGLE_JOINS, single)
    b.put(layout.DOUBLE_JOINS, np.packbits(marks, bitorder="little"))
    b.words[layout.DOUBLE_SHIFT] = 64 - bits


def _edge_slots(edges: np.ndarray) -> tuple[np.ndarray, int]:
    bits = max(3, int(np.ceil(np.log2(max(len(edges), 1) / 0.75))))
    slots = np.full(1 << bits, -1, np.int64)
    build.insert_edges(np.ascontiguousarray(edges), slots, 64 - bits)
    return _without_wrap(slots, slots == -1), 64 - bits


def _put_words(b: _Builder, vocabulary: Vocabulary, ids: dict[bytes, int], reachable: np.ndarray) -> None:
    """Tables of the words that are tokens as a whole: those merging gives, or all with ``ignore_merges``."""
    words = [(t, i) for t, i in ids.items() if (vocabulary.ignore_merges or reachable[i]) and _is_utf8(t)]
    for index, per_line, shortest, longest in (
        (layout.WORDS8, 5, 1, 8),
        (layout.WORDS16, 3, 9, 16),
    ):
        chosen = [(t, i) for t, i in words if shortest <= len(t) <= longest]
        count, shift = _lines_for(len(chosen), per_line)
        lines = aligned(8 * count, np.int64).reshape(-1, 8)
        halves = np.frombuffer(b"".join(t.ljust(16, b"\0") for t, _ in chosen), np.int64).reshape(-1, 2)
        build.insert_words(
            halves[:, 0].copy(),
            halves[:, 1].copy(),
            np.array([len(t) for t, _ in chosen], np.int32),
            np.array([i for _, i in chosen], np.int32),
            per_line,
            lines,
            lines.view(np.int32),
            shift,
        )
        b.put(index, _without_wrap(lines, lines.view(np.int32)[:, 15] == 0))
        b.words[index + 1] = shift
    chosen = [(t, i) for t, i in words if len(t) > 16]
    blob, offsets = _blob(t + b"\xff" for t, _ in chosen)
    bits = max(3, int(np.ceil(np.log2(max(len(chosen), 1) / 0.75))))
    slots = np.full((1 << bits, 2), -1, np.int64)
    lengths = np.array([len(t) for t, _ in chosen], np.int64)
    build.insert_long_words(
        blob, offsets[:-1].copy(), lengths, np.array([i for _, i in chosen], np.int64), slots, 64 - bits
    )
    b.put(layout.LONG, _without_wrap(slots, slots[:, 1] == -1))
    b.words[layout.LONG_SHIFT] = 64 - bits
    b.put(layout.BLOB, np.concatenate([blob, np.zeros(PADDING, np.uint8)]))
    b.words[layout.LONGEST] = int(lengths.max(initial=0))


def _is_utf8(token: bytes) -> bool:
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True


def _put_added(b: _Builder, vocabulary: Vocabulary) -> None:
    added = vocabulary.added
    count = len(added)
    info = np.zeros((max(count, 1), 4), np.int32)
    first = np.zeros(256, np.uint8)
    nodes = {(level, b""): count + level for level in (0, 1)}
    edges: list[int] = []
    contents = [vocabulary.matched_text(a).encode() for a in added]
    ends = {(int(a.normalized), content): n for n, (a, content) in enumerate(zip(added, contents))}
    for n, (token, content) in enumerate(zip(added, contents)):
        flags = layout.SPECIAL * token.special | layout.LEFT_STRIP * token.lstrip
        flags |= layout.RIGHT_STRIP * token.rstrip | layout.SINGLE_WORD * token.single_word
        info[n, :3] = token.id, flags, len(content)
        level = int(token.normalized)
        if not content:
            continue
        first[content[0]] |= 1 << level
        for at in range(1, len(content) + 1):
            key = (level, content[:at])
            if key not in nodes:
                nodes[key] = ends.get(key, count + 2 + len(nodes))
                edges.append((((nodes[level, content[: at - 1]] << 8) | content[at - 1]) << 24) | nodes[key])
    slots, shift = _edge_slots(np.array(edges, np.int64))
    b.put(layout.ADDED_TRIE, slots)
    b.words[layout.ADDED_SHIFT] = shift
    b.words[layout.ADDED_COUNT] = count
    b.put(layout.ADDED, info)
    b.put(layout.ADDED_FIRST, first)
    for level in (0, 1):
        starts = np.flatnonzero(first & (1 << level))
        b.words[layout.ADDED_ONLY + level] = starts[0] if len(starts) == 1 else -1
