"""Other tokenizers over the same vocabularies, for the tokenizer bench."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizer.byte_alphabet import to_chars
from tokenizer.vocabulary import Vocabulary

Encode = Callable[[str], Sequence[int]]

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


_SPLIT = {"type": "Split", "pattern": {"Regex": _LLAMA3}, "behavior": "Isolated", "invert": False}
_PRE_TOKENIZERS = {
    "smollm2": [{"type": "Digits", "individual_digits": True}, _byte_level(True)],
    "llama3": [_SPLIT, _byte_level(False)],
}


def tokenizer_json(name: str, vocabulary: Vocabulary) -> str:
    """The vocabulary `name` ("smollm2" or "llama3") as the tokenizer.json that the peers read."""
    spelled = [to_chars(t) for t in vocabulary.tokens]
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": a.id, "content": a.content, **{f: getattr(a, f) for f in flags}}
                for a in vocabulary.added
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[name]},
            "post_processor": None,
            "decoder": _byte_level(True),
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": vocabulary.ignore_merges,
                "vocab": {s: i for i, s in enumerate(spelled) if s},
                "merges": [[spelled[a], spelled[b]] for a, b, _ in vocabulary.merges.tolist()],
            },
        }
    )


@dataclass(frozen=True)
class Peer:
    """Another tokenizer.

    Attributes
    ----------
    name : str
    make : callable
        Gives a function from text to ids with empty caches, made from (name, vocabulary, tokenizer.json);
        None if it cannot express the vocabulary.
    """

    name: str
    make: Callable[[str, Vocabulary, str], Encode | None]

    @property
    def installed(self) -> bool:
        """Whether its package can be imported."""
        try:
            importlib.import_module(self.name)
        except ImportError:
            return False
        return True


def _hf(name: str, vocabulary: Vocabulary, text: str) -> Encode:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_str(text)
    return lambda s: tokenizer.encode(s, add_special_tokens=False).ids


def _tiktoken(name: str, vocabulary: Vocabulary, text: str) -> Encode | None:
    import tiktoken

    if name != "llama3":  # needs a token for every byte, and merges that follow the ids
        return None
    special = {a.content: a.id for a in vocabulary.added}
    ranks = {t: i for i, t in enumerate(vocabulary.tokens) if i < len(vocabulary.tokens) - len(special)}
    encoding = tiktoken.Encoding(name, pat_str=_LLAMA3, mergeable_ranks=ranks, special_tokens=special)
    return encoding.encode_ordinary


def _fastokens(name: str, vocabulary: Vocabulary, text: str) -> Encode:
    fastokens = importlib.import_module("fastokens")
    tokenizer = fastokens.Tokenizer.from_json_str(text)
    return lambda s: tokenizer.encode(s).ids


def _tokie(name: str, vocabulary: Vocabulary, text: str) -> Encode:
    tokie = importlib.import_module("tokie")
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        f.write(text)
        f.flush()
        tokenizer = tokie.Tokenizer.from_json(f.name)
    return lambda s: tokenizer.encode(s, add_special_tokens=False).ids


HF = Peer("tokenizers", _hf)
PEERS = (HF, Peer("tiktoken", _tiktoken), Peer("fastokens", _fastokens), Peer("tokie", _tokie))
