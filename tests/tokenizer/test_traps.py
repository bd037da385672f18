"""Inputs that break BPE tokenizers: every one gives the ids of the reference implementation."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.tokenizer import vocabularies
from tests.tokenizer.make_traps import SETUPS
from tokenizer import AddedToken, Tokenizer, TokenizerError, formats

_DATA = json.loads((Path(__file__).parent / "data" / "traps.json").read_text())


@cache
def _tokenizer(name: str, setup: str | None) -> Tokenizer:
    vocabulary = formats.read(vocabularies.path(name))
    if setup is None:
        return Tokenizer(vocabulary)
    added = []
    for options in SETUPS[setup]:
        content = options["content"].encode()
        known = vocabulary.tokens.index(content) if content in vocabulary.tokens else None
        added.append(
            AddedToken(id=vocabulary.size + len(added) if known is None else known, special=False, **options)
        )
    return Tokenizer(vocabulary.with_added(added))


def _name(trap: dict[str, Any]) -> str:
    return f"{trap['vocab']}-{trap['cat']}-{trap['text'][:20]!a}"


@pytest.mark.parametrize("trap", _DATA["traps"], ids=_name)
def test_trap(trap: dict[str, Any]) -> None:
    ids = _tokenizer(trap["vocab"], trap.get("setup")).encode(trap["text"], parse_special=True)
    assert ids.tolist() == trap["ids"], trap["why"]


@pytest.mark.parametrize("case", _DATA["streaming"], ids=lambda c: ascii(c["text"]))
def test_stream_emits_whole_characters(case: dict[str, Any]) -> None:
    tokenizer = _tokenizer("smollm2", None)
    assert [tokenizer.token_bytes(i).hex() for i in case["ids"]] == case["token_bytes_hex"]
    stream = tokenizer.stream_decoder()
    steps = [stream.push(i) for i in case["ids"]]
    text = "".join(steps) + stream.flush()
    assert text == case["text"] == tokenizer.decode(case["ids"])
    # A character comes out with the token that completes it, never later.
    complete = 0
    for n, step in enumerate(steps, start=1):
        complete += len(step)
        data = b"".join(bytes.fromhex(h) for h in case["token_bytes_hex"][:n])
        assert complete == len(data.decode(errors="ignore"))


@pytest.mark.parametrize("case", _DATA["errors"], ids=lambda c: c["text_escaped"])
def test_lone_surrogates_are_an_error(case: dict[str, Any]) -> None:
    text = case["text_escaped"].encode().decode("unicode_escape")
    with pytest.raises(TokenizerError, match="not valid Unicode"):
        _tokenizer("smollm2", None).encode(text)
