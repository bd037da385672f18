from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rdma import FrontEndPort, ShmTransport
from ring.layout import RingGeometry
from ring.memory import RingMemory
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
