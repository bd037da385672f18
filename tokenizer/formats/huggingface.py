"""tokenizer.json of Hugging Face ``tokenizers``, with the files that stand beside it."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tokenizer import splitters
from tokenizer.byte_alphabet import to_bytes
from tokenizer.errors import TokenizerError, VocabularyFormatError
from tokenizer.formats.common import end_of_generation
from tokenizer.kernels.layout import MOST_IDS
from tokenizer.vocabulary import WRITTEN_SPACE, AddedToken, Vocabulary


def read(path: Path) -> Vocabulary:
    """Vocabulary of the tokenizer.json `path`.

    ``tokenizer_config.json``, ``generation_config.json`` and ``chat_template.jinja`` beside it give the
    chat template and the begin and end tokens. Truncation and padding that it declares are left out:
    every call says how many ids it wants.

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
    if config.get("version", "1.0") != "1.0":
        raise VocabularyFormatError(f"{path} is of version {config['version']!r}; known is '1.0'")
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
    vocab: dict[str, int] = model["vocab"]
    added = _added(config.get("added_tokens", []), vocab)
    byte_tokens = _byte_tokens(vocab, path) if byte_fallback else ()
    if byte_fallback:
        _require_raw(added, prepend_space)
    tokens = _tokens(vocab, added, byte_tokens)
    merges, ranks = _merges(model["merges"], vocab)
    settings = _json(path.with_name("tokenizer_config.json")) or {}
    generation = _json(path.with_name("generation_config.json")) or {}
    prefix, suffix = _affixes(config.get("post_processor"))
    id_of = {a.content: a.id for a in added}
    named = {k: _content(v) for k, v in settings.items() if k.endswith("_token") and _content(v)}
    declared = generation.get("eos_token_id", [])
    declared = declared if isinstance(declared, list) else [declared]
    return Vocabulary(
        tokens=tokens,
        merges=merges,
        ranks=ranks,
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
        raise VocabularyFormatError(f"{path} is not valid JSON ({error}): fetch it anew") from error
    return value if isinstance(value, dict) else None


def _content(value: Any) -> str:
    return value.get("content", "") if isinstance(value, dict) else value if isinstance(value, str) else ""


def _require_plain(model: dict[str, Any], path: Path) -> None:
    """Refuse the options of BPE models that change ids and that byte-level vocabularies do not use."""
    for option in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option) and not (option == "unk_token" and model.get("byte_fallback")):
            raise TokenizerError(f"{path}: the BPE option {option}={model[option]!r} is not implemented")


def _added(declared: list[dict[str, Any]], vocab: dict[str, int]) -> tuple[AddedToken, ...]:
    """Added tokens as the reference takes them over.

    The declared ids count for nothing: a token of the vocabulary has its id there, another one the next free
    id. Of tokens with one text the last counts, but it is special if any of them is.
    """
    added: dict[str, AddedToken] = {}
    for token in declared:
        content = token["content"]
        if not content:
            continue
        following = max([len(vocab), *(a.id + 1 for a in added.values())])
        special = bool(token["special"]) or (content in added and added[content].special)
        flags = (bool(token[name]) for name in ("lstrip", "rstrip", "single_word", "normalized"))
        known = added[content].id if content in added else vocab.get(content, following)
        ordinary = content in vocab and to_bytes(content) == content.encode()
        added[content] = AddedToken(known, content, special, *flags, ordinary=ordinary)
    return tuple(added.values())


def _tokens(
    vocab: dict[str, int], added: tuple[AddedToken, ...], byte_tokens: tuple[int, ...]
) -> list[bytes]:
    ids = [*vocab.values(), *(a.id for a in added)]
    wrong = [i for i in ids if type(i) is not int or not 0 <= i < MOST_IDS]
    if wrong:
        raise VocabularyFormatError(f"{wrong[0]!r} is no token id: ids are 0 to {MOST_IDS - 1}")
    if len(set(vocab.values())) < len(vocab):
        raise VocabularyFormatError("two tokens of the vocabulary have the same id")
    tokens = [b""] * (max(ids, default=-1) + 1)
    for spelling, i in vocab.items():
        tokens[i] = spelling.replace(WRITTEN_SPACE, " ").encode() if byte_tokens else to_bytes(spelling)
    for byte, i in enumerate(byte_tokens):
        tokens[i] = bytes([byte])
    for a in added:
        if vocab.get(a.content) != a.id or a.special:
            tokens[a.id] = a.content.encode()
    return tokens


def _merges(merges: list[Any], vocab: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Merges and their ranks; tokenizer.json spells a merge as ``"a b"`` or, since 0.20, as ``["a", "b"]``.

    Of equal merges the last one counts.
    """
    rank_of: dict[tuple[int, int], int] = {}
    merged = []
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        try:
            rank_of[vocab[left], vocab[right]] = rank
            merged.append(vocab[left + right])
        except KeyError as error:
            raise VocabularyFormatError(f"merge {merge!r} uses the unknown token {error}") from None
    ranks = np.sort(np.array(list(rank_of.values()), np.int32))
    pairs = {rank: pair for pair, rank in rank_of.items()}
    rows = [(*pairs[rank], merged[rank]) for rank in ranks.tolist()]
    return np.array(rows, np.int32).reshape(-1, 3), ranks


def _normalizer(config: dict[str, Any] | None) -> str:
    if config is None or (config["type"] == "Sequence" and not config["normalizers"]):
        return ""
    if config["type"] == "Sequence" and len(config["normalizers"]) == 1:
        return _normalizer(config["normalizers"][0])
    if config["type"] == "NFC":
        return "NFC"
    raise TokenizerError(f"the normalizer {str(config)[:400]} is not implemented: only NFC and none are")


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
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": WRITTEN_SPACE}
    prepend = {"type": "Prepend", "prepend": WRITTEN_SPACE}
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


def _require_raw(added: tuple[AddedToken, ...], prepend_space: bool) -> None:
    """Refuse added tokens that would have to match a text whose spaces are written as U+2581."""
    for a in added:
        if a.normalized and (prepend_space or a.lstrip or a.rstrip):
            raise TokenizerError(
                f"the added token {a.content!r} matches normalised text, which with byte fallback is "
                'implemented without Prepend, lstrip and rstrip only; declare it "normalized": false'
            )


def _affixes(config: dict[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that a post-processor puts before and after a single text."""
    if config is None or config["type"] == "ByteLevel":
        return (), ()
    if config["type"] == "Sequence":
        parts = [part for part in map(_affixes, config["processors"]) if part != ((), ())]
        if len(parts) > 1:
            raise TokenizerError("a post-processor with several templates is not implemented")
        return parts[0] if parts else ((), ())
    if config["type"] in ("BertProcessing", "RobertaProcessing"):
        return (config["cls"][1],), (config["sep"][1],)
    if config["type"] != "TemplateProcessing":
        raise TokenizerError(f"the post-processor {str(config)[:200]} is not implemented")
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
        return jinja.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        by_name = {t["name"]: t["template"] for t in template}
        return by_name.get("default")
    return template
