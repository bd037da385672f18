"""Published vocabularies for the tests, and the same ones for Hugging Face ``tokenizers`` to compare with."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers as hf

from tokenizer import TokenizerError, formats, published
from tokenizer.byte_alphabet import to_chars
from tokenizer.vocabulary import Vocabulary

#: Pre-tokenizer patterns of the vocabularies that do not come as tokenizer.json, as published.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED, _REST = r"[^\r\n\p{L}\p{N}]?", r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = rf"{_CASED}{_UPPER}*{_LOWER}+{_ENDING}|{_CASED}{_UPPER}+{_LOWER}*{_ENDING}|\p{{N}}{{1,3}}{_REST}"
_TEKKEN = rf"{_CASED}{_UPPER}*{_LOWER}+|{_CASED}{_UPPER}+{_LOWER}*|\p{{N}}{_REST}"

NAMES = tuple(published.SOURCES)


def path(name: str) -> Path:
    """File of the vocabulary `name`; the calling test is skipped (fails under CI) if it cannot be had."""
    given = os.environ.get("BLINK_NUMBA_TEST_GGUF")
    if name == "smollm2" and given:
        return Path(given)
    try:
        return published.path(name)
    except TokenizerError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"vocabulary {name} is not at hand: {error}")


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(False)]}


_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm2": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level(True)],
    },
    "llama3": _split(_LLAMA3),
    "cl100k": _split(_LLAMA3),
    "qwen2": _split(_QWEN2),
    "o200k": _split(_O200K),
    "tekken": _split(_TEKKEN),
}


def tokenizer_json(vocabulary: Vocabulary, pre_tokenizer: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer.json of a byte-level vocabulary, as conversion scripts write it."""
    spelled = [to_chars(t) for t in vocabulary.tokens]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": a.id,
                "content": a.content,
                "single_word": a.single_word,
                "lstrip": a.lstrip,
                "rstrip": a.rstrip,
                "normalized": a.normalized,
                "special": a.special,
            }
            for a in vocabulary.added
        ],
        "normalizer": {"type": "NFC"} if vocabulary.normalizer == "NFC" else None,
        "pre_tokenizer": pre_tokenizer,
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


@cache
def json_text(name: str) -> str:
    """tokenizer.json of the vocabulary `name`, built from its file's tokens and merges."""
    if name == "deepseek":
        return path(name).read_text()
    return json.dumps(tokenizer_json(formats.read(path(name)), _PRE_TOKENIZERS[name]))


@cache
def reference(name: str) -> hf.Tokenizer:
    """Hugging Face's tokenizer of the vocabulary `name`."""
    return hf.Tokenizer.from_str(json_text(name))
