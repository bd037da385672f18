"""The models that tests need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blink_numba.models import ModelError, fetch


def smollm2_path() -> Path:
    """SmolLM2's file, fetched at first use; a skip where it cannot be, unless CI asks for all tests."""
    try:
        return fetch("smollm2", quiet=True)
    except ModelError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"SmolLM2 is not at hand: {error}")
