"""Vocabularies with byte fallback (as Llama-2 and Gemma): ids and text of Hugging Face's own."""

import json
from pathlib import Path

import pytest
import tokenizers as hf
from hypothesis import given, settings
from tokenizers import decoders, models, normalizers, trainers

from tests.tokenizer.texts import texts
from tokenizer import Tokenizer, TokenizerError, UnknownPreTokenizer, VocabularyFormatError, load

_CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "これはテストです。今天天气很好",
    "naïve café 12 345",
] * 40


def _trained(prepend: bool) -> hf.Tokenizer:
    tokenizer = hf.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    replace = normalizers.Replace(" ", "▁")
    steps = [normalizers.Prepend("▁"), replace] if prepend else [replace]
    tokenizer.normalizer = normalizers.Sequence(steps)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    config = json.loads(tokenizer.to_str())
    config["added_tokens"] = config["added_tokens"][:3]
    strip = [decoders.Strip(" ", 1, 0)] if prepend else []
    tokenizer = hf.Tokenizer.from_str(json.dumps(config))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


@pytest.fixture(scope="module", params=[False, True], ids=["replace", "prepend"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[hf.Tokenizer, Tokenizer]:
    reference = _trained(request.param)
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    reference.save(str(path))
    return reference, load(path)


@settings(deadline=None, max_examples=150)
@given(text=texts())
def test_same_ids(pair: tuple[hf.Tokenizer, Tokenizer], text: str) -> None:
    reference, ours = pair
    assert ours.encode(text, parse_special=True).tolist() == reference.encode(text).ids


@pytest.mark.parametrize(
    "text", ["", " ", "hello", " hello", "a<s>b </s> c", "▁x", "é 日本 \U0001f600", "<0x41>", "a\nb"]
)
def test_edges(pair: tuple[hf.Tokenizer, Tokenizer], text: str) -> None:
    reference, ours = pair
    ids = ours.encode(text, parse_special=True)
    assert ids.tolist() == reference.encode(text).ids
    assert ours.decode(ids) == reference.decode(ids.tolist())
    stream = ours.stream_decoder()
    assert "".join(stream.push(i) for i in ids.tolist()) + stream.flush() == ours.decode(ids)


def test_missing_byte_token_is_an_error(pair: tuple[hf.Tokenizer, Tokenizer], tmp_path: Path) -> None:
    config = json.loads(pair[0].to_str())
    del config["model"]["vocab"]["<0x0A>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(config))
    with pytest.raises(VocabularyFormatError, match="<0x0A>"):
        load(tmp_path)


def test_other_normalizer_is_an_error(pair: tuple[hf.Tokenizer, Tokenizer], tmp_path: Path) -> None:
    config = json.loads(pair[0].to_str())
    config["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerError, match="Lowercase"):
        load(tmp_path)


def test_no_pre_tokenizer_without_fallback_is_an_error(tmp_path: Path) -> None:
    config = json.loads(hf.Tokenizer(models.BPE({"a": 0}, [])).to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(config))
    with pytest.raises(UnknownPreTokenizer, match="pre-tokenizer"):
        load(tmp_path)
