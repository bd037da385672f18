"""Names of the words that a kernel finds its tables, buffers and parameters by.

A `state` is the address of ``WORDS`` int64 words. Those up to ``TABLE_WORDS`` describe the vocabulary and are
equal in all states of one tokenizer; the others belong to one workspace.
"""

from tokenizer.kernels.jit import kernel
from tokenizer.kernels.memory import load_i64

# --- vocabulary: addresses of tables, shifts of their hashes, parameters
VOCAB = 0  #: number of ids; trie nodes below it are tokens
PAIRS, PAIRS_SHIFT = 1, 2  #: lines of eight (pair << 24 | rank) words
MERGED = 3  #: int32 per rank: the id a merge gives
NODES = 4  #: 16 bytes per id: left, right, rank of the merge that forms it, longest proper prefix;
#: the rank is -1 for bytes, and `NO_RANK` where a merge comes after one of higher rank
LENGTHS = 5  #: int32 per id: bytes
TRIE, TRIE_SHIFT = 6, 7  #: ((node << 8 | byte) << 24 | child) words, -1 is empty
ROOT = 8  #: int32 per two bytes: node, or -1
BYTE_IDS = 9  #: int32 per byte: id, or -1
CLASS_BLOCKS, CLASSES = 10, 11  #: uint16 per 256 code points, then uint8 per code point of a block
WORDS8, WORDS8_SHIFT = 12, 13  #: lines of five words of up to 8 bytes
WORDS16, WORDS16_SHIFT = 14, 15  #: lines of words of 9 to 16 bytes
LONG, LONG_SHIFT, BLOB = 16, 17, 18  #: (hash, blob offset << 24 | id), and the bytes of longer words
LONGEST = 19  #: bytes of the longest word that is looked up whole
MASKS = 20  #: 16 bytes per word length 0 to 16: the mask of its bytes
FAMILY, MAX_DIGITS, FLAGS = 21, 22, 23
ADDED_TRIE, ADDED_SHIFT = 24, 25  #: as TRIE; nodes below ADDED_COUNT are added tokens
ADDED_COUNT, ADDED = 26, 27  #: 16 bytes per added token: id, flags, bytes
ADDED_FIRST = 28  #: uint8 per byte: bit n is set if an added token of level n starts with it
ADDED_ONLY = 29  #: per level the one byte that all added tokens start with, or -1: level 0 here, 1 next
SINGLE_JOINS = 31  #: a bit per two bytes: some merge of a single byte puts them side by side
DOUBLE_JOINS, DOUBLE_SHIFT = 32, 33  #: a bit per hash of four bytes: some other merge has two on each side
WIDE_ROOT = 34  #: int32 per 3-byte character: its node and flags, or -1
WIDE_TRIE, WIDE_SHIFT = 35, 36  #: ((node << 16 | code point) << 24 | flags and child) words, -1 is empty
CHARACTER_BLOCKS, CHARACTER_IDS = 37, 38  #: as CLASS_BLOCKS and CLASSES: int32 ids of characters, or -1
FALLBACK_IDS = 39  #: int32 per byte: the id that stands for it in a character without a token
TABLE_WORDS = 40

# --- workspace
TEXT = 40  #: padded copy of the text
OUT = 41  #: int32 ids
STARTS = 42  #: a bit per byte: a word starts here
BLANKS, SWALLOWED = 43, 44  #: a bit per byte, see `split_cl100k`
DEAD = 45  #: a bit per byte of a word: no tokenization goes on from here
IDS, RANKS, LINKS, HEAP = 46, 47, 48, 49  #: of `merge_by_rank`
CACHE, CACHE_SHIFT = 50, 51  #: 64-byte entries: words that need merging, and their ids
SCRATCH = 52  #: a word without the bytes that have no id
LAST_LEFT, LAST_RIGHT = 53, 54  #: results of `merge_by_rank`
MAY_MISS_BYTES = 55  #: 1 if a byte of the text may be one without an id
WORDS = 56

# --- flags above the 22 bits of a node in the wide tries
NODE_MASK = (1 << 22) - 1
HAS_WIDE, HAS_BYTES = 1 << 22, 1 << 23  #: tokens go on with a 3-byte character, with anything else

# --- bits of FLAGS
ISOLATED_DIGITS = 1
CONTRACTIONS = 2
LINEAR = 4  #: merge by longest match and backtracking
HAS_MISSING_BYTES = 8
BULK_LETTERS = 16  #: the ranges that `blocks` takes for letters without looking are letters
RAW_ADDED, NORMALIZED_ADDED = 32, 64  #: there are added tokens of level 0, of level 1
ORDINARY_ADDED = 128  #: there are added tokens that match without `parse_special`

FALLBACK = 512  #: merging starts from characters instead of bytes
PREPEND_SPACE = 1024  #: a space is put before every text
RARE_MISSING_BYTES = 256  #: bytes without an id are among `memory.rare_bytes`

# --- bits of an added token's flags
SPECIAL, LEFT_STRIP, RIGHT_STRIP, SINGLE_WORD = 1, 2, 4, 8

# --- bits of a class beside the splitter's own
CLASS_MASK = 31
WHITE_BIT, WORD_BIT = 64, 128  #: white space and word characters, for the options of added tokens

#: Larger than any rank.
NO_RANK = 0x7FFFFFFF
#: Odd multiplier of all hashes: 2**64 divided by the golden ratio, as a signed number.
GOLDEN = -7046029254386353131
MIX = -4417276706812531889


@kernel
def word(state, index):
    """Word `index` of `state`."""
    return load_i64(state + 8 * index)


# What the tables' fields can hold: see `table_builder.check_limits`.
MOST_IDS = 1 << 20
MOST_RANKS = 1 << 24
LONGEST_TOKEN = (1 << 16) - 1
