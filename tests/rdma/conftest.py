from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rdma import FrontEndPort, ShmTransport
from ring.layout import RingGeometry
from ring.memory import RingMemory
from tests.rdma.fake_verbs import Fabric
from tests.rdma.peer import ring_name

MAX_MODEL_LEN, VOCAB = 256, 1000


@pytest.fixture
def make_ring():
    """Make rings that go with the test: ``make_ring(slots=64, …) -> RingMemory``."""
    made = []

    def make(**geometry) -> RingMemory:
        sizes = {
            "slots": 64,
            "arena_tokens": 1 << 15,
            "log_entries": 1 << 10,
            "flight_entries": 16,
        } | geometry
        memory = RingMemory.create(
            ring_name(), RingGeometry(**sizes), max_model_len=MAX_MODEL_LEN, vocab_size=VOCAB
        )
        made.append(memory)
        return memory

    yield make
    for memory in made:
        memory.close()


@pytest.fixture
def ring(make_ring) -> RingMemory:
    return make_ring()


def attach(memory: RingMemory, front_end: int = 0, **options) -> FrontEndPort:
    """A port of its own mapping on `memory`'s ring."""
    name = memory.path.name.removeprefix("blink-numba-")
    return FrontEndPort(ShmTransport.attach(name), front_end, **options)


@contextmanager
def attached(memory: RingMemory, front_end: int = 0, **options) -> Iterator[FrontEndPort]:
    """A port for the block; what is live at its end is left behind, not waited for."""
    port = attach(memory, front_end, **options)
    try:
        yield port
    finally:
        port.close(deadline_s=0.0)


@pytest.fixture
def fabric(monkeypatch) -> Iterator[Fabric]:
    """Verbs without a device; at its end nothing of it may be left."""
    made = Fabric()
    monkeypatch.setattr("rdma.verbs.transport.open_device", made.open_device)
    monkeypatch.setattr("rdma.verbs.host.open_device", made.open_device)
    yield made
    give_up = time.monotonic() + 10.0
    while made.left() != (0, 0, 0) and time.monotonic() < give_up:
        time.sleep(0.01)  # a session's thread may be on its way out
    assert made.left() == (0, 0, 0)
