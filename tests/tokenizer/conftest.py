"""Vocabularies and their reference tokenizers, shared by the tokenizer tests."""

from collections.abc import Callable
from functools import lru_cache

import pytest

from tests.tokenizer import vocabularies
from tokenizer import Tokenizer, load


@lru_cache(maxsize=None)
def _load(name: str) -> Tokenizer:
    return load(vocabularies.path(name))


@pytest.fixture(scope="session")
def vocabulary() -> Callable[[str], Tokenizer]:
    """Tokenizer of a published vocabulary by name; skips where it cannot be had."""
    return _load
