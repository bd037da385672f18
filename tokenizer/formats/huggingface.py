"""tokenizer.json of Hugging Face ``tokenizers``, with the files that stand beside it."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tokenizer import splitters
from tokenizer.byte_alphabet import to_bytes
from tokenizer.errors import TokenizerError, VocabularyFormatError
from tokenizer.formats.common import end_of_generation
from tokenizer.vocabulary import AddedToken, Vocabulary


def read(path: Path) -> Vocabulary:
    """Vocabulary of the tokenizer.json `path`.

    ``tokenizer_config.json``, ``generation_config.json`` and ``chat_template.jinja`` beside it give the
    chat template and the begin and end tokens.

    Raises
    ------
    VocabularyFormatError
        If the model is not byte-level BPE.
    UnknownPreTokenizer
        If the pre-tokenizer or normalizer is not implemented.
    """
    config = _json(path)
    if config is None or config.get("model", {}).get("type", "BPE") != "BPE" or "model" not in config:
        raise VocabularyFormatError(f"{path} is not a BPE tokenizer.json")
    model = config["model"]
    _require_plain(model, path)
    byte_fallback = bool(model.get("byte_fallback"))
    prepend_space = False
    normalizer = ""
    if byte_fallback:
        splitter = splitters.WHOLE
        prepend_space = _prepends_space(config.get("normalizer"), config.get("pre_tokenizer"))
    else:
        splitter = splitters.from_hf(config.get("pre_tokenizer"))
        normalizer = _normalizer(config.get("normalizer"))
    added = tuple(
        AddedToken(
            a["id"], a["content"], a["special"], a["lstrip"], a["rstrip"], a["single_word"], a["normalized"]
        )
        for a in config.get("added_tokens", [])
    )
    vocab: dict[str, int] = model["vocab"]
    byte_tokens = _byte_tokens(vocab, path) if byte_fallback else ()
    tokens = _tokens(vocab, added, byte_tokens)
    settings = _json(path.with_name("tokenizer_config.json")) or {}
    generation = _json(path.with_name("generation_config.json")) or {}
    prefix, suffix = _affixes(config.get("post_processor"))
    id_of = {a.content: a.id for a in added}
    named = {k: _content(v) for k, v in settings.items() if k.endswith("_token") and _content(v)}
    declared = generation.get("eos_token_id", [])
    declared = declared if isinstance(declared, list) else [declared]
    return Vocabulary(
        tokens=tokens,
        merges=_merges(model["merges"], vocab),
        ranks=np.arange(len(model["merges"]), dtype=np.int32),
        splitter=splitter,
        added=added,
        ignore_merges=bool(model.get("ignore_merges", False)),
        byte_tokens=byte_tokens,
        prepend_space=prepend_space,
        normalizer=normalizer,
        bos_id=id_of.get(named.get("bos_token", ""), prefix[0] if prefix else None),
        eos_ids=end_of_generation([id_of.get(named.get("eos_token", "")), *declared], added),
        prefix_ids=prefix,
        suffix_ids=suffix,
        chat_template=_chat_template(path, settings),
        template_tokens=named,
    )


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise VocabularyFormatError(f"{path} is not valid JSON: {error}") from error
    return value if isinstance(value, dict) else None


def _content(value: Any) -> str:
    return value.get("content", "") if isinstance(value, dict) else value if isinstance(value, str) else ""


def _require_plain(model: dict[str, Any], path: Path) -> None:
    """Refuse the options of BPE models that change ids and that byte-level vocabularies do not use."""
    for option in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option) and not (option == "unk_token" and model.get("byte_fallback")):
            raise TokenizerError(f"{path}: the BPE option {option}={model[option]!r} is not implemented")


def _tokens(
    vocab: dict[str, int], added: tuple[AddedToken, ...], byte_tokens: tuple[int, ...]
) -> list[bytes]:
    size = max([*vocab.values(), *(a.id for a in added)], default=-1) + 1
    tokens = [b""] * size
    for spelling, i in vocab.items():
        tokens[i] = spelling.replace(_SPACE, " ").encode() if byte_tokens else to_bytes(spelling)
    for byte, i in enumerate(byte_tokens):
        tokens[i] = bytes([byte])
    for a in added:
        if vocab.get(a.content) != a.id or a.special:
            tokens[a.id] = a.content.encode()
    return tokens


def _merges(merges: list[Any], vocab: dict[str, int]) -> np.ndarray:
    """Merges in rank order; tokenizer.json spells a merge as ``"a b"`` or, since 0.20, as ``["a", "b"]``."""
    out = np.empty((len(merges), 3), np.int32)
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        try:
            out[rank] = vocab[left], vocab[right], vocab[left + right]
        except KeyError as error:
            raise VocabularyFormatError(f"merge {merge!r} uses the unknown token {error}") from None
    return out


def _normalizer(config: dict[str, Any] | None) -> str:
    if config is None or (config["type"] == "Sequence" and not config["normalizers"]):
        return ""
    if config["type"] == "Sequence" and len(config["normalizers"]) == 1:
        return _normalizer(config["normalizers"][0])
    if config["type"] == "NFC":
        return "NFC"
    raise TokenizerError(f"the normalizer {str(config)[:400]} is not implemented: only NFC and none are")


#: How vocabularies with byte fallback spell a space.
_SPACE = "\u2581"


def _byte_tokens(vocab: dict[str, int], path: Path) -> tuple[int, ...]:
    try:
        return tuple(vocab[f"<0x{byte:02X}>"] for byte in range(256))
    except KeyError as error:
        raise VocabularyFormatError(f"{path} has byte fallback but no token {error}") from None


def _prepends_space(normalizer: dict[str, Any] | None, pre_tokenizer: dict[str, Any] | None) -> bool:
    """Whether a space is put before a text, from the normalizer steps that write spaces as U+2581."""
    steps = [normalizer] if normalizer else []
    if normalizer and normalizer["type"] == "Sequence":
        steps = normalizer["normalizers"]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepend = {"type": "Prepend", "prepend": _SPACE}
    # Once every space is replaced, splitting at spaces does nothing.
    idle = pre_tokenizer is None or (
        pre_tokenizer["type"] == "Split" and pre_tokenizer["pattern"] == {"String": " "}
    )
    if idle and steps in ([replace], [prepend, replace]):
        return len(steps) == 2
    raise TokenizerError(
        f"the normalizer {str(normalizer)[:200]} with the pre-tokenizer {str(pre_tokenizer)[:200]} is not "
        "implemented for byte fallback: known are Replace, and Prepend with Replace, of spaces by U+2581"
    )


def _affixes(config: dict[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that a ``TemplateProcessing`` puts before and after a single text."""
    if config is None:
        return (), ()
    if config["type"] == "Sequence":
        parts = [_affixes(c) for c in config["processors"]]
        return sum((p for p, _ in parts), ()), sum((s for _, s in reversed(parts)), ())
    if config["type"] != "TemplateProcessing":
        return (), ()
    before: list[int] = []
    after: list[int] = []
    side = before
    for piece in config["single"]:
        if "Sequence" in piece:
            side = after
        else:
            side.extend(config["special_tokens"][piece["SpecialToken"]["id"]]["ids"])
    return tuple(before), tuple(after)


def _chat_template(path: Path, settings: dict[str, Any]) -> str | None:
    """Template beside `path`: chat_template.jinja, else the (default) one of tokenizer_config.json."""
    jinja = path.with_name("chat_template.jinja")
    if jinja.is_file():
        return jinja.read_text()
    template = settings.get("chat_template")
    if isinstance(template, list):
        by_name = {t["name"]: t["template"] for t in template}
        return by_name.get("default")
    return template
