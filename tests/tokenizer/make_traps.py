"""Check the ids in ``data/traps.json`` against the installed Hugging Face ``tokenizers``, or renew them.

``python -m tests.tokenizer.make_traps`` reports differences; ``--write`` stores what is installed now.
"""

import json
import sys
from pathlib import Path
from typing import Any

import tokenizers as hf

from tests.tokenizer import vocabularies

FILE = Path(__file__).parent / "data" / "traps.json"

#: Added tokens of the traps that need some, by their ``setup``.
SETUPS: dict[str, list[dict[str, Any]]] = {
    "add_tokens lstrip=True": [{"content": "<mask>", "lstrip": True}],
    "add_tokens rstrip=True": [{"content": "<mask>", "rstrip": True}],
    "add_tokens single_word=True": [{"content": "foo", "single_word": True}],
    "add_tokens <a>,<a><b>,<b>": [{"content": "<a>"}, {"content": "<a><b>"}, {"content": "<b>"}],
}


def reference_with(vocab: str, setup: str | None) -> hf.Tokenizer:
    """Hugging Face tokenizer of `vocab` with the added tokens of `setup`."""
    tokenizer = hf.Tokenizer.from_str(vocabularies.json_text(vocab))
    if setup:
        tokenizer.add_tokens([hf.AddedToken(**token) for token in SETUPS[setup]])
    return tokenizer


def main() -> None:
    """Compare, and write with ``--write``."""
    data = json.loads(FILE.read_text())
    changed = 0
    for trap in data["traps"]:
        ids = (
            reference_with(trap["vocab"], trap.get("setup"))
            .encode(trap["text"], add_special_tokens=False)
            .ids
        )
        if ids != trap["ids"]:
            changed += 1
            print(f"{trap['cat']}: {trap['text'][:60]!r} was {trap['ids'][:12]}, is {ids[:12]}")
            trap["ids"] = ids
    print(f"{len(data['traps'])} traps, {changed} differ from tokenizers {hf.__version__}")
    if "--write" in sys.argv[1:]:
        data["made_with"] = f"tokenizers {hf.__version__}"
        FILE.write_text(json.dumps(data, ensure_ascii=True, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
