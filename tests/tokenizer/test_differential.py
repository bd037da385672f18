"""The same ids as Hugging Face ``tokenizers`` on hard random texts, for every kind of vocabulary."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tokenizer import vocabularies
from tests.tokenizer.fuzz import assert_same
from tests.tokenizer.texts import texts
from tokenizer import load


@pytest.mark.parametrize("name", vocabularies.NAMES)
def test_same_ids(name: str) -> None:
    ours = load(vocabularies.path(name))

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(text=texts(), parse_special=st.booleans())
    def check(text: str, parse_special: bool) -> None:
        assert_same(name, ours, text, parse_special)

    check()
