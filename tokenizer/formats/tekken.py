"""tekken files of Mistral: tiktoken ranks as JSON, with the pattern and the special tokens inside.

Ids are ranks shifted by the number of special tokens, which take the first ids.
"""

import base64
import json
from pathlib import Path

from tokenizer import splitters
from tokenizer.errors import VocabularyFormatError
from tokenizer.formats.common import end_of_generation, merges_from_ranks, require_bytes
from tokenizer.kernels.layout import MOST_IDS
from tokenizer.vocabulary import AddedToken, Vocabulary

#: Special tokens of files that do not list theirs (mistral-common's deprecated defaults), by id.
_DEFAULT_SPECIAL = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)


def recognises(head: bytes) -> bool:
    """Whether a JSON file that starts with `head` is a tekken file."""
    return b'"token_bytes"' in head or b'"default_num_special_tokens"' in head


def read(path: Path) -> Vocabulary:
    """Vocabulary of the tekken file `path`.

    Raises
    ------
    VocabularyFormatError
        If the JSON is damaged or lacks a part.
    UnknownPreTokenizer
        If its pattern is not implemented.
    """
    try:
        data = json.loads(path.read_bytes())
        config = data["config"]
        splitter = splitters.from_pattern(config["pattern"])
        n_special = config["default_num_special_tokens"]
        n_ordinary = config["default_vocab_size"] - n_special
        ordinary = [base64.b64decode(v["token_bytes"]) for v in data["vocab"][: max(n_ordinary, 0)]]
        listed = data.get("special_tokens") or [
            {"rank": i, "token_str": s, "is_control": True} for i, s in enumerate(_DEFAULT_SPECIAL)
        ]
        special = {s["rank"]: s["token_str"] for s in listed}
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, splitters.UnknownPreTokenizer):
            raise
        raise VocabularyFormatError(f"{path} is not a valid tekken file: {error!r}") from error
    if not 0 <= n_special <= MOST_IDS or not 0 <= n_ordinary == len(ordinary):
        raise VocabularyFormatError(
            f"{path} declares {n_special} special and {n_ordinary} other tokens, and lists {len(ordinary)}"
        )
    require_bytes(ordinary)
    added = tuple(AddedToken(i, special.get(i, f"<SPECIAL_{i}>"), special=True) for i in range(n_special))
    merges, ranks = merges_from_ranks(ordinary, first_id=n_special)
    id_of = {a.content: a.id for a in added}
    bos, eos = id_of.get("<s>"), id_of.get("</s>")
    return Vocabulary(
        tokens=[a.content.encode() for a in added] + ordinary,
        merges=merges,
        ranks=ranks,
        splitter=splitter,
        added=added,
        ignore_merges=True,
        bos_id=bos,
        eos_ids=end_of_generation([eos], added),
        prefix_ids=() if bos is None else (bos,),
        template_tokens={"bos_token": "<s>", "eos_token": "</s>"},
    )
