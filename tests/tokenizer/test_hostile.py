"""Texts and files made to break a tokenizer: near-linear time is kept, ids are the reference's, errors clear.

Time is not measured here: the texts are so long that quadratic work would take many minutes.
"""

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as hf
from tokenizers import normalizers

from tests.tokenizer import vocabularies
from tokenizer import Tokenizer, TokenizerError, UnknownPreTokenizer, Vocabulary, byte_level, chat, load
from tokenizer.normalize import nfc
from tokenizer.splitters import _PATTERNS, GPT2, TEKKEN
from tokenizer.table_builder import build_tables

_MILLION = 1_000_000
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_FREE = byte_level().vocab_size


@pytest.mark.parametrize("unit", ["  a", "!\n", "x's", "<|im_end|>", "👨\u200d👩\u200d"])
def test_a_megabyte_in_one_piece_of_deepseeks(unit: str) -> None:
    ours = load(vocabularies.path("deepseek"))
    text = unit * (_MILLION // len(unit.encode()))
    assert ours.decode(ours.encode(text)) == text
    short = unit * 300
    assert ours.encode(short).tolist() == vocabularies.reference("deepseek").encode(short).ids


@pytest.mark.parametrize(
    "unit", ["\u0301\u0316", "\u0f73", "\u0344\u0316", "\u0f73\u0898\u0316", "e\u0301\u0316"], ids=ascii
)
def test_a_long_run_of_marks_is_normalised(unit: str) -> None:
    text = "e" + unit * (_MILLION // len(unit.encode()))
    assert nfc(text) == normalizers.NFC().normalize_str(text)


def test_white_space_around_many_tokens_is_looked_at_once(tmp_path: Path) -> None:
    mask = {"content": "<m>", "lstrip": True, "rstrip": True}
    ours, reference = _pair(tmp_path, normalizer={"type": "NFC"}, added_tokens=[_added(_FREE, **mask)])
    text = "e\u0301 <m> " * 30_000
    assert ours.encode(text, parse_special=True).tolist() == reference.encode(text).ids


def _added(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, "special": True} | plain | flags


def _config(**changes: Any) -> dict[str, Any]:
    return vocabularies.tokenizer_json(byte_level().vocabulary, _BYTE_LEVEL) | changes


def _load(folder: Path, config: dict[str, Any]) -> Tokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(config))
    return load(folder)


def _pair(folder: Path, **changes: Any) -> tuple[Tokenizer, hf.Tokenizer]:
    config = _config(**changes)
    return _load(folder, config), hf.Tokenizer.from_str(json.dumps(config))


_TEXTS = ("a<x>b", " <x>  <x> foo_", "foo xfoo foo", "e\u0301x éx", "hello a", "")


@pytest.mark.parametrize(
    "added",
    [
        [_added(1000, "<x>"), _added(5, "foo")],
        [_added(_FREE, "<x>"), _added(_FREE + 1, "<x>", rstrip=True, special=False)],
        [_added(_FREE, "<x>", lstrip=True, special=False), _added(_FREE, "<x>", rstrip=True)],
        [_added(98, "a"), _added(95, "_", normalized=True, lstrip=True)],
        [_added(_FREE, "e\u0301x", normalized=True, special=False)],
        [_added(_FREE, "e\u0301x", special=False)],
        [_added(_FREE, "")],
    ],
)
@pytest.mark.parametrize("parse_special", [False, True])
def test_added_tokens_that_contradict_the_vocabulary(
    tmp_path: Path, added: list[dict[str, Any]], parse_special: bool
) -> None:
    ours, reference = _pair(tmp_path, normalizer={"type": "NFC"}, added_tokens=added)
    reference.encode_special_tokens = not parse_special
    for text in _TEXTS:
        ids = reference.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, parse_special=parse_special).tolist() == ids, text


def test_of_equal_merges_the_last_counts(tmp_path: Path) -> None:
    config = _config()
    config["model"]["vocab"] |= {"ab": _FREE, "bc": _FREE + 1}
    config["model"]["merges"] = [["a", "b"], ["b", "c"], ["a", "b"]]
    assert (
        _load(tmp_path, config).encode("abc").tolist()
        == hf.Tokenizer.from_str(json.dumps(config)).encode("abc").ids
    )
    assert _load(tmp_path, config).encode("abc").tolist() == [97, _FREE + 1]


@pytest.mark.parametrize("kind", ["RobertaProcessing", "BertProcessing"])
def test_post_processors_of_two_tokens(tmp_path: Path, kind: str) -> None:
    post = {"type": kind, "sep": ["b", 98], "cls": ["a", 97]}
    if kind == "RobertaProcessing":
        post |= {"trim_offsets": True, "add_prefix_space": False}
    ours, reference = _pair(tmp_path, post_processor=post)
    assert ours.encode("x", add_special=True).tolist() == reference.encode("x").ids == [97, 120, 98]


def _fallback(added: list[dict[str, Any]], prepend: bool = False) -> dict[str, Any]:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b"]
    config = _config(pre_tokenizer=None, decoder=None)
    model = {"vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": []}
    config["model"] |= model | {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps = [{"type": "Prepend", "prepend": "▁"}, replace] if prepend else [replace]
    normalizer = {"type": "Sequence", "normalizers": steps}
    return config | {"normalizer": normalizer, "added_tokens": [_added(0, "<unk>"), *added]}


@pytest.mark.parametrize("prepend", [False, True])
def test_added_tokens_see_which_space_was_written(tmp_path: Path, prepend: bool) -> None:
    added = [
        _added(260, "a b", special=False),
        _added(261, "▁▁", special=False),
        _added(262, "<x>", lstrip=True),
    ]
    config = _fallback(added, prepend)
    ours, reference = _load(tmp_path, config), hf.Tokenizer.from_str(json.dumps(config))
    for text in ("a b", "a▁b", "  ", "▁▁", " <x>", "▁<x>a▁b"):
        assert ours.encode(text, parse_special=True).tolist() == reference.encode(text).ids, text


def test_normalised_added_tokens_with_prepend_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="'<x>' matches normalised text"):
        _load(tmp_path, _fallback([_added(260, "<x>", normalized=True)], prepend=True))


def _template(token: str, token_id: int) -> dict[str, Any]:
    single = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {token: {"id": token, "ids": [token_id], "tokens": [token]}}
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}


def _two_templates(config: dict[str, Any]) -> None:
    processors = [_template("a", 97), _template("b", 98)]
    config["post_processor"] = {"type": "Sequence", "processors": processors}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: c["model"].update(vocab=[1]), "fetch or convert"),
        (lambda c: c["model"].update(merges="ab"), "fetch or convert"),
        (lambda c: c["model"].pop("merges"), "'merges'"),
        (lambda c: c["model"].update(merges=[["q", "zz"]]), r"tokenizer\.json.*unknown token 'zz'"),
        (lambda c: c["model"]["vocab"].update(a=None), "None is no token id"),
        (lambda c: c["model"]["vocab"].update(a=-5), "-5 is no token id"),
        (lambda c: c["model"]["vocab"].update(zz=1 << 31), "2147483648 is no token id"),
        (lambda c: c["model"]["vocab"].update(zz=97), "same id"),
        (lambda c: c["model"]["vocab"].update({"a" * 70_000: _FREE}), "longest token"),
        (lambda c: c.update(model="BPE"), "fetch or convert"),
        (lambda c: c.update(pre_tokenizer="ByteLevel"), "fetch or convert"),
        (lambda c: c.update(added_tokens=["<x>"]), "fetch or convert"),
        (lambda c: c.update(added_tokens=[_added(1, "\ud800")]), "surrogates"),
        (lambda c: c.update(post_processor={"type": "Other"}), "'Other'"),
        (_two_templates, "several templates"),
        (lambda c: c.update(version="2.0"), r"version '2\.0'"),
    ],
)
def test_damaged_tokenizer_json_is_an_error(
    tmp_path: Path, damage: Callable[[dict[str, Any]], object], message: str
) -> None:
    config = _config()
    damage(config)
    with pytest.raises(TokenizerError, match=message):
        _load(tmp_path, config)


def test_nested_json_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"a":' + "[" * 200_000)
    with pytest.raises(TokenizerError):
        load(tmp_path)


def test_too_many_ids_are_an_error() -> None:
    many = Vocabulary([b"a"] * ((1 << 20) + 1), np.empty((0, 3), np.int32), np.empty(0, np.int32), GPT2)
    with pytest.raises(TokenizerError, match="1,048,577 ids"):
        build_tables(many)


def _gguf(*pairs: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _entry(key: str, kind: int, value: bytes) -> bytes:
    return _text(f"tokenizer.ggml.{key}") + struct.pack("<I", kind) + value


def _strings(values: list[str]) -> bytes:
    return struct.pack("<IQ", 8, len(values)) + b"".join(map(_text, values))


_HEAD = (_entry("model", 8, _text("gpt2")), _entry("pre", 8, _text("gpt-2")))
_TOKENS = (_entry("tokens", 9, _strings(["a", "b", "ab"])), _entry("merges", 9, _strings(["a b"])))


@pytest.mark.parametrize(
    "content",
    [
        _gguf(*_HEAD),
        _gguf(*_HEAD, _TOKENS[0]),
        _gguf(*_HEAD, _entry("tokens", 4, struct.pack("<I", 3))),
        _gguf(_HEAD[0], _entry("pre", 9, _strings(["x"]))),
        _gguf(_entry("x", 9, struct.pack("<IQ", 9, 1) * 100_000)),
        _gguf(_entry("x", 9, struct.pack("<IQ", 4, 1 << 63))),
    ],
    ids=["no tokens", "no merges", "tokens a number", "name a list", "nested", "endless"],
)
def test_damaged_gguf_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"a\.gguf"):
        load(tmp_path / "a.gguf")


def test_a_gguf_id_beyond_the_vocabulary_stands_for_none(tmp_path: Path) -> None:
    none = _entry("bos_token_id", 4, struct.pack("<I", 0xFFFFFFFF))
    (tmp_path / "a.gguf").write_bytes(_gguf(*_HEAD, *_TOKENS, none))
    ours = load(tmp_path / "a.gguf")
    assert ours.bos_id is None
    assert ours.encode("abb").tolist() == [2, 1]


_RANKS = b"".join(base64.b64encode(bytes([b])) + b" %d\n" % b for b in range(256))


def test_tiktoken_files(tmp_path: Path) -> None:
    file = tmp_path / "own.tiktoken"

    def read(content: bytes) -> Tokenizer:
        file.write_bytes(content)
        return load(file, preset="cl100k_base")

    assert read(_RANKS + b"\n\n").encode("ab").tolist() == [97, 98]
    with pytest.raises(TokenizerError, match=r"own\.tiktoken: byte 0xFF has no token"):
        read(_RANKS[: _RANKS.rindex(b"/w==")])
    more = b"".join(base64.b64encode(b"%06d" % i) + b" %d\n" % (256 + i) for i in range(100_100))
    with pytest.raises(TokenizerError, match="wrong preset"):
        read(_RANKS + more)


@pytest.mark.parametrize(
    ("size", "special", "twice", "message"),
    [(10, 20, False, "declares 20"), (276, -2, False, "-2"), (277, 20, True, "two ranks")],
)
def test_damaged_tekken_is_an_error(
    tmp_path: Path, size: int, special: int, twice: bool, message: str
) -> None:
    tokens = [bytes([b]) for b in range(256)] + [b"a"] * twice
    pattern = next(p for p, s in _PATTERNS.items() if s == TEKKEN)
    config = {"pattern": pattern, "default_vocab_size": size, "default_num_special_tokens": special}
    vocab = [{"rank": i, "token_bytes": base64.b64encode(t).decode()} for i, t in enumerate(tokens)]
    (tmp_path / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab}))
    with pytest.raises(TokenizerError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("token", [97.0, 1.5, "a", None])
def test_ids_of_other_types_are_an_error(token: Any) -> None:
    tiny = byte_level()
    with pytest.raises(TokenizerError, match="must be an integer"):
        tiny.decode([token])
    with pytest.raises(TokenizerError, match="must be an integer"):
        tiny.stream_decoder().push(token)


def test_misused_calls_are_an_error() -> None:
    with pytest.raises(TokenizerError, match="several texts"):
        byte_level().encode_batch("abc")
    with pytest.raises(TokenizerError, match="no token"):
        byte_level().id_of("\ud800")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_templates_that_fail_are_an_error(source: str) -> None:
    with pytest.raises(TokenizerError, match="chat template failed"):
        chat.render(source, [])


def test_unknown_pre_tokenizer_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(UnknownPreTokenizer, match=r"tokenizer\.json: .*Whitespace"):
        _load(tmp_path, _config(pre_tokenizer={"type": "Whitespace"}))
