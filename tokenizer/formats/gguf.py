"""Vocabulary inside a GGUF file.

Only the metadata section is read: magic, version, counts, then key-value pairs.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

from tokenizer import splitters
from tokenizer.byte_alphabet import to_bytes
from tokenizer.errors import VocabularyFormatError
from tokenizer.formats.common import end_of_generation
from tokenizer.vocabulary import AddedToken, Vocabulary

MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4


class _Reader:
    """Cursor over the little-endian metadata section."""

    def __init__(self, buffer: mmap.mmap | bytes, position: int = 0) -> None:
        self.buffer = buffer
        self.position = position

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.buffer, self.position)
        self.position += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        return self.raw_string().decode(errors="surrogateescape")

    def raw_string(self) -> bytes:
        length = self.scalar("Q")
        start = self.position
        if length > len(self.buffer) - start:
            raise struct.error("string past the end of the file")
        self.position = start + length
        return self.buffer[start : start + length]

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.scalar("I"), self.scalar("Q")
            if item in _SCALARS:
                array = np.frombuffer(self.buffer, "<" + _SCALARS[item], count, self.position).copy()
                self.position += array.nbytes
                return array
            return [self.value(item) for _ in range(count)]
        return self.scalar(_SCALARS[kind])


def metadata(path: Path) -> dict[str, Any]:
    """Key-value pairs of the GGUF file `path`.

    Raises
    ------
    VocabularyFormatError
        If the file is not GGUF version 2 or 3, or ends too early.
    """
    with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
        reader = _Reader(buffer, len(MAGIC))
        try:
            version = reader.scalar("I")
            if buffer[: len(MAGIC)] != MAGIC or version not in (2, 3):
                raise VocabularyFormatError(f"{path} is not a GGUF file of version 2 or 3 (found {version})")
            reader.scalar("Q")
            pairs = reader.scalar("Q")
            return {reader.string(): reader.value(reader.scalar("I")) for _ in range(pairs)}
        except (struct.error, KeyError, ValueError, OverflowError, RecursionError) as error:
            if isinstance(error, VocabularyFormatError):
                raise
            raise VocabularyFormatError(f"{path}: damaged GGUF metadata ({error})") from error


def read(path: Path) -> Vocabulary:
    """Vocabulary of the GGUF file `path`.

    Raises
    ------
    VocabularyFormatError
        If it holds no byte-level BPE vocabulary.
    UnknownPreTokenizer
        If its ``tokenizer.ggml.pre`` is not implemented.
    """
    meta = metadata(path)
    model = meta.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise VocabularyFormatError(
            f"{path}: the GGUF tokenizer model {model!r} is not byte-level BPE ('gpt2')"
        )
    pre = meta.get("tokenizer.ggml.pre", "default")
    splitter = splitters.from_gguf_name(pre)
    spellings: list[str] = meta["tokenizer.ggml.tokens"]
    types = meta.get("tokenizer.ggml.token_type", np.full(len(spellings), _NORMAL, np.int32))
    added = tuple(
        AddedToken(i, spellings[i], special=bool(types[i] == _CONTROL))
        for i in np.flatnonzero((types == _CONTROL) | (types == _USER_DEFINED)).tolist()
    )
    tokens = [to_bytes(s) for s in spellings]
    for a in added:
        tokens[a.id] = a.content.encode()
    merges = _merges(meta["tokenizer.ggml.merges"], spellings, path)
    bos, eos, eot = (
        _id(meta, f"tokenizer.ggml.{name}_token_id", len(tokens)) for name in ("bos", "eos", "eot")
    )
    named = {"bos_token": bos, "eos_token": eos}
    return Vocabulary(
        tokens=tokens,
        merges=merges,
        ranks=np.arange(len(merges), dtype=np.int32),
        splitter=splitter,
        added=added,
        ignore_merges=pre in ("llama-bpe", "llama3", "llama-v3", "tekken"),
        bos_id=bos,
        eos_ids=end_of_generation([eos, eot], added),
        prefix_ids=_affix(bos, meta.get("tokenizer.ggml.add_bos_token", False)),
        suffix_ids=_affix(eos, meta.get("tokenizer.ggml.add_eos_token", False)),
        chat_template=meta.get("tokenizer.chat_template"),
        template_tokens={k: spellings[i] for k, i in named.items() if i is not None},
    )


def _id(meta: dict[str, Any], key: str, size: int) -> int | None:
    """Id that `meta` declares under `key`; None also for one beyond the vocabulary, which stands for none."""
    declared = meta.get(key, size)
    return declared if declared < size else None


def _affix(token: int | None, wanted: bool) -> tuple[int, ...]:
    return (token,) if wanted and token is not None else ()


def _merges(spelled: list[str], spellings: list[str], path: Path) -> np.ndarray:
    id_of = {s: i for i, s in enumerate(spellings)}
    out = np.empty((len(spelled), 3), np.int32)
    for rank, merge in enumerate(spelled):
        left, _, right = merge.partition(" ")
        try:
            out[rank] = id_of[left], id_of[right], id_of[left + right]
        except KeyError as error:
            raise VocabularyFormatError(f"{path}: merge {merge!r} uses the unknown token {error}") from None
    return out
