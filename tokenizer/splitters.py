"""The ways in which vocabularies cut text into words before merging, and how they are recognised.

A `Splitter` is data: which family of patterns, and the parameters in which members of a family differ.
`reference.py` holds the patterns as readable regular expressions; `kernels/split.py` the fast automata.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizer.errors import UnknownPreTokenizer


class Family(IntEnum):
    """Families of pre-tokenizer patterns."""

    WHOLE = 0  #: the text is one word (vocabularies with byte fallback)
    GPT2 = 1  #: contractions, `` ?\\p{L}+``, `` ?\\p{N}+``, `` ?[^\\s\\p{L}\\p{N}]+``
    CL100K = 2  #: as Llama-3 and Qwen: ``[^\\r\\n\\p{L}\\p{N}]?\\p{L}+``, numbers of few digits
    O200K = 3  #: as GPT-4o and tekken: words end where lower case turns to upper case
    DEEPSEEK = 4  #: three splits in turn: numbers, Han and kana, the rest


@dataclass(frozen=True)
class Splitter:
    """One way to cut text into words.

    Attributes
    ----------
    family : Family
    max_digits : int
        Longest run of digits in one word; 0 means any length.
    isolated_digits : bool
        Every numeric character is cut out before the pattern sees the text (SmolLM2), so that it also
        ends the text left of it.
    contractions : bool
        English contractions (``'s``, ``'ll``, ...) are words (CL100K) or endings of words (O200K).
    marks_in_words : bool
        CL100K only: ``\\p{M}`` counts as a letter (Qwen3.5).
    """

    family: Family
    max_digits: int = 0
    isolated_digits: bool = False
    contractions: bool = True
    marks_in_words: bool = False


GPT2 = Splitter(Family.GPT2)
SMOLLM = Splitter(Family.GPT2, isolated_digits=True)
LLAMA3 = Splitter(Family.CL100K, max_digits=3)
QWEN2 = Splitter(Family.CL100K, max_digits=1)
QWEN35 = Splitter(Family.CL100K, max_digits=1, marks_in_words=True)
O200K = Splitter(Family.O200K, max_digits=3)
TEKKEN = Splitter(Family.O200K, max_digits=1, contractions=False)
DEEPSEEK = Splitter(Family.DEEPSEEK, max_digits=3)
WHOLE = Splitter(Family.WHOLE)

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CONTRACTIONS_CL100K = r"'(?i:[sdmt]|ll|ve|re)"
_GPT2_TAIL = r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?"
_PUNCTUATION_SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
_MARKED = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACES


def _cased(contractions: str, digits: str) -> str:
    return (
        f"{_CASED}{_UPPER}*{_LOWER}+{contractions}|{_CASED}{_UPPER}+{_LOWER}*{contractions}"
        f"|{digits}{_PUNCTUATION_SLASH}{_SPACES}"
    )


#: Patterns of single ``Split`` pre-tokenizers, tiktoken encodings and tekken files, by their exact text.
#: Possessive quantifiers and ``\s*[\r\n]`` without ``+`` are tiktoken's later spelling of the same pattern.
_PATTERNS: dict[str, Splitter] = {
    r"'s|'t|'re|'ve|'m|'ll|'d" + _GPT2_TAIL: GPT2,
    r"'(?:[sdmt]|ll|ve|re)" + _GPT2_TAIL: GPT2,
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": GPT2,
    _CONTRACTIONS + _LETTERS + r"|\p{N}{1,3}" + _PUNCTUATION + _SPACES: LLAMA3,
    _CONTRACTIONS + _LETTERS + r"|\p{N}" + _PUNCTUATION + _SPACES: QWEN2,
    _CONTRACTIONS_CL100K + _LETTERS + r"|\p{N}{1,3}" + _PUNCTUATION + _SPACES: LLAMA3,
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": LLAMA3,
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s": LLAMA3,
    _MARKED: QWEN35,
    _cased(_CONTRACTIONS + "?", r"\p{N}{1,3}"): O200K,
    _cased("", r"\p{N}"): TEKKEN,
}

#: Names of pre-tokenizers in GGUF files (``tokenizer.ggml.pre``).
_GGUF_NAMES: dict[str, Splitter] = {
    "smollm": SMOLLM,
    "gpt-2": GPT2,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "deepseek-v3": DEEPSEEK,
    "tekken": TEKKEN,
    "gpt-4o": O200K,
    "llama4": O200K,
}

_DEEPSEEK_SPLITS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)


def from_pattern(pattern: str) -> Splitter:
    """Splitter of a tiktoken, tekken or ``Split`` pattern.

    Raises
    ------
    UnknownPreTokenizer
        If the pattern is not, character for character, one that is implemented.
    """
    try:
        return _PATTERNS[pattern]
    except KeyError:
        raise UnknownPreTokenizer(
            f"the pre-tokenizer pattern {pattern!r} is not implemented; known families are GPT-2, cl100k "
            "(Llama-3, Qwen), o200k, tekken and DeepSeek. Add it to tokenizer/splitters.py with a kernel."
        ) from None


def from_gguf_name(name: str) -> Splitter:
    """Splitter of a GGUF file's ``tokenizer.ggml.pre``; raises `UnknownPreTokenizer` for other names."""
    try:
        return _GGUF_NAMES[name]
    except KeyError:
        raise UnknownPreTokenizer(
            f"the GGUF pre-tokenizer {name!r} is not implemented (known: {', '.join(sorted(_GGUF_NAMES))}); "
            "load the model's tokenizer.json instead, or add the name to tokenizer/splitters.py."
        ) from None


def from_hf(config: dict[str, Any] | None) -> Splitter:
    """Splitter of the ``pre_tokenizer`` part of a tokenizer.json.

    Raises
    ------
    UnknownPreTokenizer
        If it is not a combination of ``Split``, ``Digits`` and ``ByteLevel`` that is implemented.
    """
    if config is None:
        raise UnknownPreTokenizer(
            "a vocabulary without a pre-tokenizer is implemented with byte fallback only"
        )
    steps = config["pretokenizers"] if config["type"] == "Sequence" else [config]
    splits = [s for s in steps if s["type"] == "Split"]
    digits = [s for s in steps if s["type"] == "Digits"]
    levels = [s for s in steps if s["type"] == "ByteLevel"]
    known = len(splits) + len(digits) + len(levels) == len(steps) and len(levels) == 1
    if not known or steps[-1] is not levels[0] or not all(map(_plain_split, splits)):
        raise UnknownPreTokenizer(_not_implemented(config))
    if levels[0].get("add_prefix_space", True):
        raise UnknownPreTokenizer(_not_implemented(config))
    if levels[0].get("use_regex", True):
        if splits or len(digits) > 1 or not all(d.get("individual_digits") for d in digits):
            raise UnknownPreTokenizer(_not_implemented(config))
        return SMOLLM if digits else GPT2
    patterns = tuple(s["pattern"]["Regex"] for s in splits)
    if digits:
        raise UnknownPreTokenizer(_not_implemented(config))
    if patterns == _DEEPSEEK_SPLITS:
        return DEEPSEEK
    if len(patterns) != 1:
        raise UnknownPreTokenizer(_not_implemented(config))
    return from_pattern(patterns[0])


def _plain_split(step: dict[str, Any]) -> bool:
    return "Regex" in step["pattern"] and step["behavior"] == "Isolated" and not step.get("invert", False)


def _not_implemented(config: dict[str, Any]) -> str:
    return (
        f"the pre-tokenizer {str(config)[:400]} is not implemented: known are ByteLevel, Digits + ByteLevel, "
        "one known Split + ByteLevel and DeepSeek's three Splits + ByteLevel. "
        "Add it to tokenizer/splitters.py with a kernel."
    )
