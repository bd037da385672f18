"""The verbs transport and its host without a device: every fault of a wire, at any moment.

The guest's scenarios run here too, over queue pairs that copy memory (`fake_verbs`); then each
status that a work request can end with, once and for ever, and hosts that die on the way.
"""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdma import FrontEndPort, TransportError, TransportLost
from rdma.verbs import RingHost
from rdma.verbs.provider import STATUS_NAMES, UNANSWERED, WC_REMOTE_ACCESS, WC_SUCCESS
from tests.rdma.fake_verbs import Fabric
from tests.rdma.guest import wire_scenarios
from tests.rdma.guest.wire_scenarios import KEY, Setup, setup

STATUSES = sorted({*STATUS_NAMES, 3, 6, 14, 15, 17, 18, 22, 23})  # some that no reliable connection gives
REFUSALS = [status for status in STATUSES if status not in UNANSWERED]
# a forked child has no part in this process's fabric; the other library is a device's affair
ELSEWHERE = (wire_scenarios.the_other_library, wire_scenarios.a_killed_front_end_is_buried_and_succeeded)


@pytest.mark.parametrize(
    "scenario",
    [one for one in wire_scenarios.SCENARIOS if one not in ELSEWHERE],
    ids=lambda one: one.__name__,
)
def test_scenario_without_a_device(fabric, scenario):
    scenario()


def one_after(good: int, status: int):
    """Chains `good` times without fault, then one that fails, then no fault any more."""
    statuses = [WC_SUCCESS] * good + [status]
    return lambda queue: statuses.pop(0) if statuses else WC_SUCCESS


@pytest.mark.parametrize("status", STATUSES)
def test_any_status_once_loses_nothing(fabric, status):
    with setup() as world:
        port = world.port()
        fabric.fail = one_after(1, status)
        world.submit(port, 20)
        world.finish(port)
        assert port.transport.counters.reconnects == 1
        assert port.close() == 0


@pytest.mark.parametrize("status", REFUSALS)
def test_a_living_host_that_refuses_again_is_believed(fabric, status):
    with setup() as world:
        port = world.port()
        fabric.fail = lambda queue: status
        with pytest.raises(TransportError, match=rf"status {status}\).*refuses this access again") as caught:
            world.submit(port, 1)
            port.poll()
        assert not isinstance(caught.value, TransportLost)
        assert port.transport.counters.reconnects == 2
        with pytest.raises(TransportLost, match="attach anew"):
            port.poll()
        port.close()


@pytest.mark.parametrize("status", UNANSWERED)
def test_a_host_that_never_answers_is_given_up(fabric, status):
    with setup() as world:
        port = FrontEndPort(world.transport(deadline_s=0.3), deadline_s=0.3)
        fabric.fail = lambda queue: status
        world.submit(port, 1)
        with pytest.raises(TransportLost, match=rf"cannot be reached again.*status {status}\)"):
            port.poll()
        assert port.transport.counters.reconnects >= 1
        port.close()


class Deaths:
    """Hosts that end as a process does: memory regions first, and the queue pair answers to the last."""

    def __init__(self, world: Setup) -> None:
        self.world = world
        self.number = world.host.port

    def lose_regions(self) -> None:
        session = self.world.host._places[0].session
        for region in session.regions if session else []:
            region.close()

    def die(self) -> None:
        self.lose_regions()
        self.world.host.close()

    def replace(self) -> None:
        self.world.host = RingHost(self.world.memory, KEY, host="127.0.0.1", port=self.number)


def test_a_dying_host_that_refuses_is_not_believed(fabric):
    """Its regions go, its queue pair still answers, with a remote access error; then another host comes."""
    with setup() as world:
        deaths = Deaths(world)
        port = world.port()
        world.submit(port, 20)
        deaths.lose_regions()
        refused = threading.Event()

        def die_after_the_refusal(queue) -> int:
            if not refused.is_set():
                refused.set()
                deaths.world.host._listener.close()  # nobody is admitted any more
                threading.Thread(target=lambda: (deaths.die(), deaths.replace())).start()
            return WC_SUCCESS

        fabric.fail = die_after_the_refusal
        world.finish(port)
        assert refused.is_set()
        assert port.transport.counters.reconnects >= 1
        assert port.close() == 0


def test_a_host_that_refuses_again_and_is_dead_by_then_is_not_believed(fabric):
    with setup() as world:
        deaths = Deaths(world)
        port = world.port()
        refusals = []

        def refuse_twice(queue) -> int:
            if len(refusals) == 2:
                return WC_SUCCESS
            refusals.append(queue)
            if len(refusals) == 2:
                deaths.world.host.close()
                deaths.replace()
            return WC_REMOTE_ACCESS

        fabric.fail = refuse_twice
        world.submit(port, 20)
        world.finish(port)
        assert len(refusals) == 2
        assert port.close() == 0


@settings(deadline=None, max_examples=int(os.environ.get("BLINK_FUZZ_EXAMPLES", "40")))
@given(data=st.data())
def test_any_faults_in_any_order_lose_nothing(data):
    """A run with faults of all kinds between and in chains: every answer whole, every end once."""
    fabric = Fabric()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rdma.verbs.transport.open_device", fabric.open_device)
        patch.setattr("rdma.verbs.host.open_device", fabric.open_device)
        patch.setattr("rdma.verbs.transport._RETRY_S", 0.001)
        patch.setattr("rdma.verbs.host._LOOK_S", 0.01)
        faults = data.draw(st.lists(st.sampled_from([WC_SUCCESS, *STATUSES]), max_size=20))
        plan = iter([*faults])
        suspicion = 0  # a living host that refuses the same chain twice is believed, so it does not here

        def fail(queue) -> int:
            nonlocal suspicion
            status = next(plan, WC_SUCCESS)
            if status in REFUSALS:
                status = WC_SUCCESS if suspicion else status
            if status == WC_SUCCESS:
                suspicion = max(suspicion - 1, 0)
            elif status in REFUSALS:
                suspicion = 1
            return status

        with setup() as world:
            deaths = Deaths(world)
            port = world.port()
            fabric.fail = fail
            world.submit(port, 12, max_tokens=6)
            for event in data.draw(
                st.lists(st.sampled_from(["turn", "drop", "regions", "restart"]), max_size=6)
            ):
                if event == "drop":
                    world.host.drop(0)
                elif event == "regions":
                    deaths.lose_regions()
                    suspicion = 2  # of the chain that meets this, and of the same chain again
                elif event == "restart":
                    world.host.close()
                    deaths.replace()
                world.scheduler.turn()
                world.book.take(port.poll())
            world.finish(port)
            assert port.close() == 0
    assert fabric.left() == (0, 0, 0)
