"""The specification: exact byte-pair encoding, written to be read.

Thousands of times slower than the kernels, which the tests compare with it. Patterns keep the form in which
vocabularies publish them; only their Unicode classes are replaced, because no regular-expression module of
Python knows the Unicode version that the reference tokenizers use: every character outside ASCII is first
replaced by a private-use character that stands for its category.
"""

import re
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from tokenizer.normalize import nfc
from tokenizer.splitters import Family, Splitter
from tokenizer.unicode_classes import CATEGORIES, categories, word_characters
from tokenizer.vocabulary import AddedToken, Vocabulary

# Private-use stand-ins: one per category, another per category for Han and kana (DeepSeek's second split).
_STAND_IN = 0xE000
_HAN_KANA = 0xE100

_LONG_S = "\u017f"  # folds to "s" in the case-insensitive contractions


def _class(*names: str, han_kana_only: bool = False) -> str:
    """Members of the named categories as the inside of a regular-expression set."""
    values = [CATEGORIES[n] for n in names]
    ascii_members = [chr(c) for c in range(128) if categories()[c] in values]
    stand_ins = [chr(base + v) for v in values for base in (_STAND_IN, _HAN_KANA)]
    if han_kana_only:
        return "".join(chr(_HAN_KANA + v) for v in values)
    long_s = [_LONG_S] if CATEGORIES["LOWER"] in values else []
    return "".join(re.escape(c) for c in ascii_members + stand_ins + long_s)


@lru_cache(maxsize=1)
def _classes() -> dict[str, str]:
    return {
        "L": _class("UPPER", "LOWER", "LETTER"),
        "Up": _class("UPPER", "LETTER", "MARK"),
        "Low": _class("LOWER", "LETTER", "MARK"),
        "M": _class("MARK"),
        "N": _class("NUMBER"),
        "D": _class("NUMBER", "DIGIT_ONLY"),
        "S": _class("SPACE"),
        "PS": _class("PUNCTUATION", "SYMBOL"),
        "HK": _class(*CATEGORIES, han_kana_only=True),
    }


@lru_cache(maxsize=32)
def _patterns(splitter: Splitter) -> tuple[re.Pattern[str], ...]:
    """Patterns that cut in turn; each cuts the pieces of the one before."""
    c = _classes()
    spaces = r"|[{S}]*[\r\n]+|[{S}]+(?![^{S}])|[{S}]+"
    digits = f"[{{N}}]{{{{1,{splitter.max_digits}}}}}"
    contractions = f"'(?i:[sdmt{_LONG_S}]|ll|ve|re)"
    if splitter.family == Family.GPT2:
        alone = ("[{D}]",) if splitter.isolated_digits else ()
        tail = "| ?[{L}]+| ?[{N}]+| ?[^{S}{L}{N}]+|[{S}]+(?![^{S}])|[{S}]+"
        spelled = (*alone, "'(?:[sdmt]|ll|ve|re)" + tail)
    elif splitter.family == Family.CL100K:
        word, not_other = ("{L}{M}", "{L}{M}{N}") if splitter.marks_in_words else ("{L}", "{L}{N}")
        spelled = (
            contractions
            + r"|[^\r\n{L}{N}]?["
            + word
            + "]+|"
            + digits
            + "| ?[^{S}"
            + not_other
            + r"]+[\r\n]*"
            + spaces,
        )
    elif splitter.family == Family.O200K:
        ending = f"(?:{contractions})?" if splitter.contractions else ""
        spelled = (
            r"[^\r\n{L}{N}]?[{Up}]*[{Low}]+"
            + ending
            + r"|[^\r\n{L}{N}]?[{Up}]+[{Low}]*"
            + ending
            + "|"
            + digits
            + r"| ?[^{S}{L}{N}]+[\r\n/]*"
            + spaces,
        )
    elif splitter.family == Family.DEEPSEEK:
        spelled = (
            digits,
            "[{HK}]+",
            r"[!-/:-@\[-`{{-~][A-Za-z]+|[^\r\n{L}{PS}]?[{L}{M}]+| ?[{PS}]+[\r\n]*" + spaces,
        )
    else:
        spelled = ("(?s:.+)",)
    return tuple(re.compile(p.format(**c)) for p in spelled)


def _stand_in(char: str) -> str:
    if char < "\x80" or char == _LONG_S:
        return char
    code = ord(char)
    han_kana = "一" <= char <= "龥" or "\u3040" <= char <= "ヿ"
    return chr((_HAN_KANA if han_kana else _STAND_IN) + int(categories()[code]))


def split(text: str, splitter: Splitter) -> list[str]:
    """Words of `text`, in order, whose concatenation is `text`."""
    pieces = [(0, len(text))]
    classes = "".join(map(_stand_in, text))
    for pattern in _patterns(splitter):
        pieces = [cut for start, end in pieces for cut in _cut(pattern, classes, start, end)]
    return [text[start:end] for start, end in pieces]


def _cut(pattern: re.Pattern[str], classes: str, start: int, end: int) -> list[tuple[int, int]]:
    """Matches of `pattern` and what lies between them; lookaheads see nothing beyond `end`."""
    out: list[tuple[int, int]] = []
    done = start
    for match in pattern.finditer(classes[start:end]):
        if start + match.start() > done:
            out.append((done, start + match.start()))
        out.append((start + match.start(), start + match.end()))
        done = start + match.end()
    if done < end:
        out.append((done, end))
    return out


class ReferenceBPE:
    """Merges words by rank, leftmost first, as published: the lowest-ranked adjacent pair merges next."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._whole = vocabulary.ids_of_bytes()
        self._byte_ids = [self._whole.get(bytes([b])) for b in range(256)]
        # of several merges of one pair, the lowest rank counts
        self._merge: dict[tuple[int, int], tuple[int, int]] = {}
        for (left, right, merged), rank in zip(vocabulary.merges.tolist(), vocabulary.ranks.tolist()):
            self._merge.setdefault((left, right), (rank, merged))

    def encode_word(self, word: bytes) -> list[int]:
        """Ids of one word."""
        if self.vocabulary.ignore_merges and word in self._whole:
            return [self._whole[word]]
        ids = [i for i in (self._byte_ids[b] for b in word) if i is not None]
        while len(ids) > 1:
            none = (1 << 31, -1)
            candidates = [self._merge.get(pair, none) for pair in pairwise(ids)]
            rank, merged = min(candidates, key=lambda c: c[0])
            if merged < 0:
                break
            at = candidates.index((rank, merged))
            ids[at : at + 2] = [merged]
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Ids of `text`, in which no added token is looked for."""
        return [i for w in split(text, self.vocabulary.splitter) for i in self.encode_word(w.encode())]

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """Ids of `text`: tokens that match raw text, then normalisation, then those that match its result."""
        raw = [a for a in self.vocabulary.added if not a.normalized]
        normalized = [
            replace(a, content=self.vocabulary.matched_text(a)) for a in self.vocabulary.added if a.normalized
        ]
        ids: list[int] = []
        for piece in split_added(text, raw, parse_special):
            if isinstance(piece, int):
                ids.append(piece)
                continue
            for part in split_added(self._normalize(piece), normalized, parse_special):
                ids.extend([part] if isinstance(part, int) else self.encode_plain(part))
        return ids

    def _normalize(self, text: str) -> str:
        return nfc(text) if self.vocabulary.normalizer == "NFC" else text


def split_added(text: str, added: list[AddedToken], parse_special: bool) -> list[str | int]:
    """Ids of added tokens found in `text`, leftmost first, longest first, and the text between them.

    A match that does not count (not a single word, or special without `parse_special`) is still consumed,
    as in the reference tokenizers.
    """
    by_content = {a.content: a for a in added if a.content}
    if not by_content:
        return [text] if text else []
    longest_first = sorted(by_content, key=lambda c: -len(c))
    pieces: list[str | int] = []
    done = 0
    for match in re.finditer("|".join(map(re.escape, longest_first)), text):
        token, (start, end) = by_content[match.group()], match.span()
        if token.special and not parse_special:
            continue
        if token.single_word and (_is_word(text[start - 1 : start]) or _is_word(text[end : end + 1])):
            continue
        if token.lstrip:
            while start > done and text[start - 1] in _white_space():
                start -= 1
        if token.rstrip:
            while end < len(text) and text[end] in _white_space():
                end += 1
        if start > done:
            pieces.append(text[done:start])
        pieces.append(token.id)
        done = end
    if done < len(text):
        pieces.append(text[done:])
    return pieces


@lru_cache(maxsize=1)
def _white_space() -> str:
    return "".join(map(chr, np.flatnonzero(categories() == CATEGORIES["SPACE"])))


def _is_word(char: str) -> bool:
    return bool(char) and bool(word_characters()[ord(char)])
