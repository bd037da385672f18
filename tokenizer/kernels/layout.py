"""Names of the words that a kernel finds its tables, buffers and parameters by.

A `state` is the address of ``WORDS`` int64 words. Those up to ``TABLE_WORDS`` describe the vocabulary and are
equal in all states of one tokenizer; the others belong to one workspace.
"""

from tokenizer.kernels.memory import load_i64
from tokenizer.kernels.jit import kernel

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
TABLE_WORDS = 32

# --- workspace
TEXT = 32  #: padded copy of the text
OUT = 33  #: int32 ids
STARTS = 34  #: a bit per byte: a word starts here
BLANKS, SWALLOWED = 35, 36  #: a bit per byte, see `split_cl100k`
DEAD = 37  #: a bit per byte of a word: no tokenization goes on from here
IDS, RANKS, LINKS, HEAP = 38, 39, 40, 41  #: of `merge_by_rank`
CACHE, CACHE_SHIFT = 42, 43  #: 64-byte entries: words that need merging, and their ids
SCRATCH = 44  #: a word without the bytes that have no id
LAST_LEFT, LAST_RIGHT = 45, 46  #: results of `merge_by_rank`
WORDS = 48

# --- bits of FLAGS
ISOLATED_DIGITS = 1
CONTRACTIONS = 2
LINEAR = 4  #: merge by longest match and backtracking
HAS_MISSING_BYTES = 8
BULK_LETTERS = 16  #: the ranges that `blocks` takes for letters without looking are letters
RAW_ADDED, NORMALIZED_ADDED = 32, 64  #: there are added tokens of level 0, of level 1
ORDINARY_ADDED = 128  #: there are added tokens that match without `parse_special`

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
