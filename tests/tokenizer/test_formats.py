"""Vocabulary files: what they declare is taken over, and what cannot be taken is a clear error."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.tokenizer import vocabularies
from tokenizer import TokenizerError, UnknownPreTokenizer, VocabularyFormatError, byte_level, cache, load
from tokenizer.vocabulary import Vocabulary

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _config(**changes: Any) -> dict[str, Any]:
    return vocabularies.tokenizer_json(byte_level().vocabulary, _BYTE_LEVEL) | changes


def _folder(path: Path, config: dict[str, Any], **side_files: Any) -> Path:
    (path / "tokenizer.json").write_text(json.dumps(config))
    for name, content in side_files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("name", "size", "eos"),
    [("smollm2", 49_152, "<|im_end|>"), ("llama3", 128_256, "<|end_of_text|>"), ("tekken", 131_072, "</s>")],
)
def test_published(name: str, size: int, eos: str) -> None:
    ours = load(vocabularies.path(name))
    assert ours.vocab_size == size
    assert ours.token_bytes(ours.eos_ids[0]) == eos.encode()


def test_side_files_of_a_folder(tmp_path: Path) -> None:
    settings = {
        "eos_token": {"content": "<|im_end|>"},
        "bos_token": "<|endoftext|>",
        "chat_template": "{{ eos_token }}",
    }
    folder = _folder(tmp_path, _config(), tokenizer_config=settings, generation_config={"eos_token_id": [65]})
    ours = load(folder)
    assert ours.eos_ids[:2] == (ours.id_of("<|im_end|>"), 65)
    assert ours.bos_id == ours.id_of("<|endoftext|>")
    assert ours.apply_chat_template([], tokenize=False) == "<|im_end|>"


def test_post_processor_gives_the_affixes(tmp_path: Path) -> None:
    pieces = [
        {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    template = {
        "type": "TemplateProcessing",
        "single": pieces,
        "pair": pieces,
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]}
        },
    }
    byte_level_step = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": False,
        "use_regex": True,
    }
    config = _config(post_processor={"type": "Sequence", "processors": [byte_level_step, template]})
    assert load(_folder(tmp_path, config)).encode("a", add_special=True).tolist() == [256, 97]


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        None,
        {"type": "Whitespace"},
        _BYTE_LEVEL | {"add_prefix_space": True},
        {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": False}, _BYTE_LEVEL]},
        {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": r"\p{L}+|\p{N}"},
                    "behavior": "Isolated",
                    "invert": False,
                },
                _BYTE_LEVEL | {"use_regex": False},
            ],
        },
    ],
)
def test_unknown_pre_tokenizer_is_an_error(tmp_path: Path, pre_tokenizer: Any) -> None:
    with pytest.raises(UnknownPreTokenizer, match="implemented"):
        load(_folder(tmp_path, _config(pre_tokenizer=pre_tokenizer)))


def test_other_models_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(VocabularyFormatError, match="BPE"):
        load(_folder(tmp_path, _config(model={"type": "Unigram", "vocab": []})))
    config = _config()
    config["model"]["dropout"] = 0.1
    with pytest.raises(TokenizerError, match="dropout"):
        load(_folder(tmp_path, config))
    config = _config(normalizer={"type": "Lowercase"})
    with pytest.raises(TokenizerError, match="Lowercase"):
        load(_folder(tmp_path, config))


def test_tiktoken_files_need_a_preset_unless_published(tmp_path: Path) -> None:
    file = tmp_path / "own.tiktoken"
    file.write_bytes(b"".join(base64.b64encode(bytes([b])) + b" %d\n" % b for b in range(256)))
    with pytest.raises(TokenizerError, match="preset= one of"):
        load(file)
    assert load(file, preset="cl100k_base").encode("ab").tolist() == [97, 98]
    with pytest.raises(TokenizerError, match="no preset 'other'"):
        load(file, preset="other")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 5)),
        ("a.gguf", b"GGUF" + struct.pack("<IQQ", 9, 0, 0)),
        ("a.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 0)),
        ("tokenizer.json", b"{broken"),
        ("tekken.json", b'{"config": {"default_num_special_tokens": 3}}'),
        ("a.tiktoken", b"QQ== 0\nQg== 7\n"),
        ("a.bin", b"\x00\x01\x02"),
    ],
)
def test_damaged_files_are_an_error(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(VocabularyFormatError):
        load(tmp_path / name)


def test_missing_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no vocabulary"):
        load(tmp_path / "tokenizer.json")
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        load(tmp_path)


def test_unknown_gguf_pre_tokenizer_is_an_error(tmp_path: Path) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def pair(key: str, value: str) -> bytes:
        return text(key) + struct.pack("<I", 8) + text(value)

    pairs = pair("tokenizer.ggml.model", "gpt2") + pair("tokenizer.ggml.pre", "brand-new")
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + pairs)
    with pytest.raises(UnknownPreTokenizer, match="brand-new"):
        load(tmp_path / "a.gguf")


def _same(a: Vocabulary, b: Vocabulary) -> bool:
    return a.tokens == b.tokens and a.added == b.added and a.splitter == b.splitter and a.eos_ids == b.eos_ids


def test_cache_gives_the_same_and_a_damaged_one_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    monkeypatch.setenv("BLINK_NUMBA_CACHE", str(tmp_path / "cache"))
    first = load(_folder(folder, _config()))
    (cached,) = (tmp_path / "cache").rglob("*.bin")
    vocabulary, tables = cache.read(cached)
    assert _same(vocabulary, first.vocabulary)
    assert (tables.buffer == first.tables.buffer).all()
    good = cached.read_bytes()
    for damaged in (
        b"",
        good[:50],
        good[:-1],
        good[:-9] + bytes([good[-9] ^ 1]) + good[-8:],
        b"OTHER!!!" + good[8:],
    ):
        cached.write_bytes(damaged)
        with pytest.raises(ValueError):
            cache.read(cached)
        assert load(folder).encode("abc").tolist() == [97, 98, 99]
        assert cached.read_bytes() == good


def test_cache_notices_a_changed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLINK_NUMBA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    load(_folder(folder, _config()))
    ours = load(_folder(folder, _config(), tokenizer_config={"eos_token": "<|im_start|>"}))
    assert ours.eos_ids[0] == ours.id_of("<|im_start|>")


def test_unwritable_cache_only_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BLINK_NUMBA_CACHE", str(tmp_path / "file"))
    assert load(_folder(tmp_path, _config())).encode("a").tolist() == [97]
