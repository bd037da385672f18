"""The contract suite over the transports that run on this machine."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rdma import FrontEndPort, Request, RingMap, ShmTransport, TransportError, TransportLost
from rdma.dma import DmaTransport
from rdma.faults import Faults, FaultyTransport
from ring import layout as at
from ring.states import EMPTY, Reason, slot_state
from tests.rdma.conftest import VOCAB
from tests.rdma.contract import CONTRACT, SIZES, Bench
from tests.rdma.fake_cuda import FakeDriver
from tests.rdma.peer import AnswerBook, ScriptedScheduler


def over_shm(memory):
    return ShmTransport.attach(memory.path.name.removeprefix("blink-numba-"))


def over_a_faulty_wire(memory):
    rng = random.Random(3)
    return FaultyTransport(over_shm(memory), Faults(choose=rng.randrange, pieces=4, repeats=2))


def over_dma(memory):
    ring = RingMap.of(memory.geometry, memory.view.info)
    return DmaTransport(memory.words.ctypes.data, ring, driver=FakeDriver())


@pytest.mark.parametrize("make", [over_shm, over_a_faulty_wire, over_dma])
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract(make_ring, make, check):
    memory = make_ring(**SIZES)
    with make(memory) as transport:
        check(Bench(memory.words, transport))


@pytest.mark.parametrize("make", [over_shm, over_a_faulty_wire, over_dma])
def test_a_front_end_that_goes_quiet_holds_no_slot(make_ring, make):
    """Its last call is the poll that brought the last answer's end: it neither polls nor submits again."""
    memory = make_ring()
    scheduler, book = ScriptedScheduler(memory), AnswerBook(VOCAB)
    port = FrontEndPort(make(memory))
    for burst in (20, 1):
        prompts = [np.array([k], np.int32) for k in range(burst)]
        requests = [Request(prompt, max_tokens=1 + k % 5) for k, prompt in enumerate(prompts)]
        for handle, prompt in zip(port.submit_many(requests), prompts, strict=True):
            book.submitted(handle, prompt)
        while book.open:
            scheduler.turn()
            book.take(port.poll())
        port.transport.complete()  # stands for time: a wire, too, runs what was posted
        view = memory.view
        states = {slot_state(int(view.ctl[2 * s]), int(view.req[s])) for s in range(memory.geometry.slots)}
        assert states == {EMPTY}
    book.check_ends(scheduler)
    assert port.close() == 0


def test_a_connection_lost_with_the_last_releases_loses_no_answer(make_ring):
    memory = make_ring()
    scheduler = ScriptedScheduler(memory)
    transport = FaultyTransport(over_shm(memory), Faults(choose=lambda n: 0))
    port = FrontEndPort(transport)
    handle = port.submit(Request(np.array([1], np.int32), max_tokens=1))
    transport.complete()
    scheduler.run(3)
    post, posts = transport.post, []

    def lost_at_the_third(batch):
        posts.append(batch)
        transport.lost = len(posts) >= 3
        post(batch)

    transport.post = lost_at_the_third
    assert [(event.handle, event.reason) for event in port.poll()] == [(handle, Reason.LENGTH)]
    assert len(posts) == 3
    with pytest.raises(TransportLost):
        port.status()


def test_a_lost_connection_is_said_at_every_use(make_ring):
    memory = make_ring()
    with FaultyTransport(over_shm(memory), Faults(choose=lambda n: 0)) as transport:
        bench = Bench(memory.words, transport)
        transport.lost = True
        with pytest.raises(TransportLost):
            bench.run((0, bench.share.ctl, 0, 1))
        with pytest.raises(TransportLost):
            transport.complete()


def test_a_port_over_dma_serves_and_succeeds_a_dead_one(make_ring):
    memory = make_ring()
    scheduler, book = ScriptedScheduler(memory), AnswerBook(VOCAB)
    port = FrontEndPort(over_dma(memory))
    prompts = [np.array([k], np.int32) for k in range(20)]
    handles = port.submit_many([Request(prompt, max_tokens=6) for prompt in prompts])
    for handle, prompt in zip(handles, prompts, strict=True):
        book.submitted(handle, prompt)
    while book.open:
        scheduler.turn()
        book.take(port.poll())
    book.check_ends(scheduler)
    memory.view.fe_port[at.P_STARTED] = 1  # no process started then: the holder is gone
    transport = over_dma(memory)
    assert transport.holder_gone(0, int(memory.view.fe_port[at.P_PID]), 1)
    assert transport.declare_dead(0) == 1
    scheduler.turn()
    assert FrontEndPort(transport, takeover=True).live() == 0


def test_a_failed_cuda_context_is_a_lost_transport(make_ring):
    memory = make_ring()
    driver = FakeDriver()
    ring = RingMap.of(memory.geometry, memory.view.info)
    transport = DmaTransport(memory.words.ctypes.data, ring, driver=driver)
    driver.stuck = True
    with pytest.raises(TransportLost, match="in time"):
        transport.complete(0.01)
    driver.broken = True
    with pytest.raises(TransportLost, match="new engine"):
        transport.complete()
    with pytest.raises(TransportError, match="staging"):
        transport.allocate(1 << 30)
