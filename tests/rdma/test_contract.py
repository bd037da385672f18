"""The contract suite over the transports that run on this machine."""

from __future__ import annotations

import random

import pytest

from rdma import ShmTransport
from rdma.faults import Faults, FaultyTransport
from tests.rdma.contract import CONTRACT, SIZES, Bench


def over_shm(memory):
    return ShmTransport.attach(memory.path.name.removeprefix("blink-numba-"))


def over_a_faulty_wire(memory):
    rng = random.Random(3)
    return FaultyTransport(over_shm(memory), Faults(choose=rng.randrange, pieces=4, repeats=2))


@pytest.mark.parametrize("make", [over_shm, over_a_faulty_wire])
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract(make_ring, make, check):
    memory = make_ring(**SIZES)
    with make(memory) as transport:
        check(Bench(memory, transport))


def test_a_lost_connection_is_said_at_every_use(make_ring):
    from rdma import TransportLost

    memory = make_ring()
    with FaultyTransport(over_shm(memory), Faults(choose=lambda n: 0)) as transport:
        bench = Bench(memory, transport)
        transport.lost = True
        with pytest.raises(TransportLost):
            bench.run((0, bench.share.ctl, 0, 1))
        with pytest.raises(TransportLost):
            transport.complete()
