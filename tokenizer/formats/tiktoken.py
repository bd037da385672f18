"""tiktoken files: one ``base64(token) rank`` per line, plain or gzipped.

Such a file holds neither its pattern nor its special tokens. They come from a preset, chosen by name or
recognised by the SHA-256 of the ranks.
"""

import base64
import binascii
import gzip
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from tokenizer import splitters
from tokenizer.errors import TokenizerError, VocabularyFormatError
from tokenizer.formats.common import end_of_generation, merges_from_ranks, require_bytes
from tokenizer.splitters import Splitter
from tokenizer.vocabulary import AddedToken, Vocabulary

_GZIP_MAGIC = b"\x1f\x8b"
_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")


@dataclass(frozen=True)
class Preset:
    """What a tiktoken encoding adds to its ranks.

    Attributes
    ----------
    splitter : Splitter
    special : tuple of str
        Special tokens that follow the last rank, in order.
    special_at : dict of str to int
        Special tokens with fixed ids.
    bos : str
        Token before a text, ``""`` for none.
    normalizer : str
    """

    splitter: Splitter
    special: tuple[str, ...] = ()
    special_at: tuple[tuple[str, int], ...] = ()
    bos: str = ""
    normalizer: str = ""


_LLAMA3_NAMED = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
)
_LLAMA3_SPECIAL = _LLAMA3_NAMED + tuple(
    f"<|reserved_special_token_{i}|>" for i in range(2, 2 + 256 - len(_LLAMA3_NAMED))
)

PRESETS: dict[str, Preset] = {
    "llama3": Preset(splitters.LLAMA3, _LLAMA3_SPECIAL, bos="<|begin_of_text|>"),
    "qwen2": Preset(splitters.QWEN2, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), normalizer="NFC"),
    "cl100k_base": Preset(
        splitters.LLAMA3,
        special_at=(
            ("<|endoftext|>", 100257),
            ("<|fim_prefix|>", 100258),
            ("<|fim_middle|>", 100259),
            ("<|fim_suffix|>", 100260),
            ("<|endofprompt|>", 100276),
        ),
    ),
    "o200k_base": Preset(
        splitters.O200K, special_at=(("<|endoftext|>", 199999), ("<|endofprompt|>", 200018))
    ),
}

#: SHA-256 of the uncompressed ranks of published files.
_KNOWN = {
    "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55": "llama3",
    "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186": "qwen2",
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": "cl100k_base",
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": "o200k_base",
}


def recognises(head: bytes) -> bool:
    """Whether a file that starts with `head` looks like a tiktoken file."""
    return head[:2] == _GZIP_MAGIC or _LINE.match(head) is not None


def read(path: Path, preset: str | None = None) -> Vocabulary:
    """Vocabulary of the tiktoken file `path`.

    Parameters
    ----------
    preset : str, optional
        Name in `PRESETS`; needed when the file is not a published one.

    Raises
    ------
    VocabularyFormatError
        If a line is not a token and a rank, or ranks have holes.
    TokenizerError
        If the encoding is not known, or `preset` is no known name.
    """
    raw = path.read_bytes()
    try:
        raw = gzip.decompress(raw) if raw[:2] == _GZIP_MAGIC else raw
        lines = [line for line in raw.splitlines() if line]
        rank_of = {base64.b64decode(t, validate=True): int(r) for t, r in map(bytes.split, lines)}
    except (ValueError, binascii.Error, OSError, EOFError) as error:
        raise VocabularyFormatError(f"{path} is not a valid tiktoken file: {error}") from error
    if sorted(rank_of.values()) != list(range(len(rank_of))):
        raise VocabularyFormatError(f"{path}: ranks are not 0 to {len(rank_of) - 1}, each once")
    chosen = _preset(path, preset or _KNOWN.get(hashlib.sha256(raw).hexdigest()))
    ordinary = sorted(rank_of, key=rank_of.__getitem__)
    require_bytes(ordinary)
    taken = [content for content, i in chosen.special_at if i < len(ordinary)]
    if taken:
        raise TokenizerError(
            f"{path} has {len(ordinary)} ranks, among them the id of {taken[0]}: wrong preset?"
        )
    added = tuple(
        AddedToken(i, content)
        for content, i in [*zip(chosen.special, range(len(ordinary), 1 << 31)), *chosen.special_at]
    )
    tokens = ordinary + [b""] * (max((a.id for a in added), default=-1) + 1 - len(ordinary))
    for a in added:
        tokens[a.id] = a.content.encode()
    merges, ranks = merges_from_ranks(ordinary)
    bos = next((a.id for a in added if a.content == chosen.bos), None)
    return Vocabulary(
        tokens=tokens,
        merges=merges,
        ranks=ranks,
        splitter=chosen.splitter,
        added=added,
        ignore_merges=True,
        normalizer=chosen.normalizer,
        bos_id=bos,
        eos_ids=end_of_generation([], added),
        prefix_ids=() if bos is None else (bos,),
        template_tokens={"bos_token": chosen.bos} if chosen.bos else {},
    )


def _preset(path: Path, name: str | None) -> Preset:
    if name in PRESETS:
        return PRESETS[name]
    wrong = f"there is no preset {name!r}" if name else f"{path} is not a published tiktoken file"
    raise TokenizerError(
        f"{wrong}: give preset= one of {', '.join(PRESETS)} (a tiktoken file holds no pattern of its own)"
    )
