"""Vocabularies and their tables on disk, so that a start reads one file instead of parsing and building.

A cache file is named after the vocabulary file's path, size and time and after the sources of this package;
a file that is damaged or of another version is rebuilt.
"""

import hashlib
import json
import os
import tempfile
import zlib
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tokenizer import formats
from tokenizer.kernels.jit import cache_home
from tokenizer.splitters import Family, Splitter
from tokenizer.table_builder import build_tables
from tokenizer.tables import Tables, aligned
from tokenizer.vocabulary import AddedToken, Vocabulary

_MAGIC = b"BLNKTOK2"
_SIDE_FILES = ("tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def load(path: Path, preset: str | None) -> tuple[Vocabulary, Tables]:
    """Vocabulary of the file `path` and its tables, from the cache or built and put there."""
    cached = cache_home() / "tokenizer" / "vocabularies" / f"{_key(path, preset)}.bin"
    try:
        return read(cached)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # absent or damaged: build it
    vocabulary = formats.read(path, preset)
    tables = build_tables(vocabulary)
    with suppress(OSError):  # a cache that cannot be written only costs the next start time
        write(cached, vocabulary, tables)
    return vocabulary, tables


def _key(path: Path, preset: str | None) -> str:
    digest = hashlib.sha256(f"{path.resolve()}|{preset}".encode())
    for file in (path, *(path.with_name(n) for n in _SIDE_FILES)):
        if file.is_file():
            stat = file.stat()
            digest.update(f"{file.name}|{stat.st_size}|{stat.st_mtime_ns}".encode())
    package = Path(__file__).parent
    for source in sorted([*package.rglob("*.py"), *package.rglob("*.npz")]):
        digest.update(source.relative_to(package).as_posix().encode() + source.read_bytes())
    return digest.hexdigest()[:32]


def write(file: Path, vocabulary: Vocabulary, tables: Tables) -> None:
    """Write `vocabulary` and `tables` to `file`, which appears whole or not at all."""
    lengths = np.array([len(t) for t in vocabulary.tokens], np.int32)
    arrays = {
        "buffer": tables.buffer,
        "words": tables.words,
        "tokens": np.frombuffer(b"".join(vocabulary.tokens), np.uint8),
        "lengths": lengths,
        "merges": vocabulary.merges,
        "ranks": vocabulary.ranks,
    }
    payload = b"".join(np.ascontiguousarray(a).tobytes() for a in arrays.values())
    header = {
        "arrays": {name: [a.dtype.str, list(a.shape)] for name, a in arrays.items()},
        "addresses": tables.addresses,
        "vocabulary": _settings(vocabulary),
    }
    head = json.dumps(header).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as f:
            f.write(_MAGIC + _word(len(head)) + _word(zlib.crc32(head)) + _word(zlib.crc32(payload)))
            f.write(head + payload)
        os.replace(partial, file)
    except BaseException:
        os.unlink(partial)
        raise


def _word(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _settings(vocabulary: Vocabulary) -> dict[str, Any]:
    settings = {k: getattr(vocabulary, k) for k in _PLAIN}
    settings["splitter"] = asdict(vocabulary.splitter)
    settings["added"] = [asdict(a) for a in vocabulary.added]
    return settings


_PLAIN = (
    "ignore_merges",
    "byte_tokens",
    "prepend_space",
    "normalizer",
    "bos_id",
    "eos_ids",
    "prefix_ids",
    "suffix_ids",
    "chat_template",
    "template_tokens",
)


def read(file: Path) -> tuple[Vocabulary, Tables]:
    """Vocabulary and tables in the cache file `file`.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is damaged or of another version.
    """
    with file.open("rb") as f:
        if f.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{file} is no vocabulary cache of this version")
        size, head_crc, payload_crc = (int.from_bytes(f.read(8), "little") for _ in range(3))
        if size > file.stat().st_size:
            raise ValueError(f"{file} ends too early")
        head = f.read(size)
        if zlib.crc32(head) != head_crc:  # before it is believed: it says how much memory is needed
            raise ValueError(f"{file} is damaged")
        header = json.loads(head)
        arrays = {}
        crc = 0
        for name, (dtype, shape) in header["arrays"].items():
            array = aligned(int(np.prod(shape)), np.dtype(dtype))
            content = array.view(np.uint8).data
            if f.readinto(content) != array.nbytes:
                raise ValueError(f"{file} ends too early")
            crc = zlib.crc32(content, crc)
            arrays[name] = array.reshape(shape)
    if crc != payload_crc:
        raise ValueError(f"{file} is damaged")
    tables = Tables(arrays["buffer"], arrays["words"], tuple(header["addresses"]))
    return _vocabulary(arrays, header["vocabulary"]), tables


def _vocabulary(arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> Vocabulary:
    blob = arrays["tokens"].tobytes()
    ends = np.cumsum(arrays["lengths"]).tolist()
    splitter = dict(settings.pop("splitter"))
    splitter["family"] = Family(splitter["family"])
    added = tuple(AddedToken(**a) for a in settings.pop("added"))
    settings |= {k: tuple(settings[k]) for k in ("eos_ids", "prefix_ids", "suffix_ids", "byte_tokens")}
    return Vocabulary(
        tokens=[blob[start:end] for start, end in zip([0, *ends], ends)],
        merges=arrays["merges"],
        ranks=arrays["ranks"],
        splitter=Splitter(**splitter),
        added=added,
        **settings,
    )
