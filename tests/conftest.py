"""What all tests share: no test may leave a ring, a thread of ours or a child behind."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from ring.memory import SHM
from tests import workers

settings.register_profile("default", deadline=None, print_blob=True)  # first examples compile
settings.load_profile("default")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: workers.place(item.nodeid))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which may be absent
def pytest_xdist_make_scheduler(config, log):
    return workers.scheduler(config, log)


def rings_of_this_process() -> set[str]:
    """Names of ring files that this process (or a worker of it) made and did not remove."""
    return {path.name for path in SHM.glob(f"blink-numba-*-{os.getpid()}-*")}


@pytest.fixture(autouse=True, scope="session")
def no_ring_left():
    """Fail a run whose tests leave a ring of this process in shared memory."""
    before = rings_of_this_process()
    yield
    left = rings_of_this_process() - before
    assert not left, f"rings left behind: {sorted(left)}"
