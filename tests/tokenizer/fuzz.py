"""Comparison with Hugging Face ``tokenizers``, for the bounded test and for the long fuzz.

``python -m tests.tokenizer.fuzz --characters 10000000`` compares that many characters for each
vocabulary and ends with a failing text, made small, if ids differ.
"""

import argparse
import time

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

from tests.tokenizer import vocabularies
from tests.tokenizer.texts import random_text, texts
from tokenizer import Tokenizer, load


def assert_same(name: str, ours: Tokenizer, text: str, parse_special: bool) -> None:
    """Fail if `ours` gives other ids for `text` than the reference of the vocabulary `name`."""
    reference = vocabularies.reference(name)
    reference.encode_special_tokens = not parse_special
    expected = reference.encode(text, add_special_tokens=False).ids
    ids = ours.encode(text, parse_special=parse_special).tolist()
    assert ids == expected, f"{name}, parse_special={parse_special}: {text!a}"


def _long_text(seed: int, parts: int) -> str:
    return "".join(random_text(seed + n, 1500) for n in range(parts))


def _long_texts() -> st.SearchStrategy[str]:
    """Mostly long texts by seed, so that time goes to comparing instead of to drawing."""
    by_seed = st.builds(_long_text, st.integers(0, 2**48), st.integers(4, 16))
    return st.one_of(by_seed, by_seed, by_seed, by_seed, by_seed, texts())


def fuzz(name: str, characters: int, seed: int) -> int:
    """Compare at least `characters` characters; returns how many it were."""
    ours = load(vocabularies.path(name))
    seen = 0

    def check(text: str, parse_special: bool) -> None:
        nonlocal seen
        seen += len(text)
        assert_same(name, ours, text, parse_special)

    while seen < characters:
        wrapped = settings(
            max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )(given(text=_long_texts(), parse_special=st.booleans())(check))
        hypothesis_seed(seed)(wrapped)()
        seed += 1
    return seen


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--characters", type=int, default=10_000_000, help="for each vocabulary")
    parser.add_argument("--seed", type=int, default=0, help="of the first texts")
    parser.add_argument("vocabularies", nargs="*", default=list(vocabularies.NAMES))
    options = parser.parse_args()
    for name in options.vocabularies:
        start = time.monotonic()
        seen = fuzz(name, options.characters, options.seed)
        print(f"{name}: {seen:,} characters, no difference, {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
