"""Tests of this folder need a GPU: `make gpu-test`. Each has a watchdog, since a kernel may never end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # before the driver starts: see graphs

WATCHDOG_S = 120


def pytest_collection_modifyitems(items) -> None:
    """Mark what lies here, and give it a shorter deadline than the suite's."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(WATCHDOG_S, method="thread"))


@pytest.fixture(autouse=True)
def needs_gpu() -> None:
    from tests.cuda_device import skip_without_gpu

    skip_without_gpu()
