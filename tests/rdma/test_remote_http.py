"""HTTP through a front end that reaches its engine's ring by one-sided access alone.

The queue pairs are `fake_verbs`; `tests/rdma/guest/serve_scenarios.py` does the same over real ones.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import openai
import pytest

from blink_numba.bench.instant import InstantEngine
from blink_numba.frontend.settings import FrontEndSettings
from blink_numba.remote import VerbsConnector, run_front_end
from rdma import TransportError, TransportLost
from rdma.verbs import Refused, RingHost
from ring.layout import RING_VERSION
from tests.frontend.harness import Running, ring_name, wait_until
from tests.frontend.test_load import all_slots_empty

KEY = "a key of the tests that is long enough"
EOS = (257, 258)
SECONDS = 20.0


class World:
    """An engine that echoes prompts, its ring's host, and an HTTP front end elsewhere."""

    def __init__(self, fabric) -> None:
        self.fabric = fabric
        self.engine = InstantEngine(
            ring_name(), slots=64, max_model_len=1024, vocab_size=259, eos_ids=EOS, step_ns=1_000_000
        )
        self.host = RingHost(self.engine.memory, KEY, host="127.0.0.1", about={"model": "tiny"})
        self.number = self.host.port
        self.front_end = Running("", connector=self.connector())

    def connector(self, key: str = KEY) -> VerbsConnector:
        return VerbsConnector("127.0.0.1", self.number, key=key)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.front_end.url}/v1", api_key="none", max_retries=0, timeout=60.0)

    def healthy(self) -> bool:
        return self.front_end.service.link.health.ok

    def restart_host(self) -> None:
        self.host = RingHost(self.engine.memory, KEY, host="127.0.0.1", port=self.number)


@pytest.fixture
def world(fabric) -> Iterator[World]:
    made = World(fabric)
    with made.engine, made.front_end:
        assert wait_until(made.healthy, SECONDS)
        try:
            yield made
        finally:
            made.host.close()


def streamed(client: openai.OpenAI, tokens: int) -> Iterator[str]:
    for chunk in client.completions.create(
        model="tiny", prompt="abc", max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
    ):
        yield chunk.choices[0].text


def test_an_answer_is_streamed(world):
    with world.client() as client:
        pieces = list(streamed(client, 300))
    assert "".join(pieces) == "abc" * 100
    assert len(pieces) > 2
    assert wait_until(lambda: all_slots_empty(world.engine.memory), SECONDS)


def test_a_client_that_hangs_up_cancels(world):
    with world.client() as client:
        answer = streamed(client, 1000)
        assert next(answer)
        client.close()
    assert wait_until(lambda: all_slots_empty(world.engine.memory), SECONDS)


def test_faults_of_the_wire_are_not_seen_by_clients(world):
    with world.client() as client:
        got = ""
        for k, piece in enumerate(streamed(client, 600)):
            got += piece
            if k % 20 == 10:
                world.host.drop(0)
        assert got == "abc" * 200
        assert world.front_end.service.link._port.transport.counters.reconnects > 0


def test_health_tells_of_a_lost_host_and_service_comes_back(world):
    with world.client() as client:
        assert "".join(streamed(client, 30)) == "abc" * 10
        world.host.close()
        assert wait_until(lambda: not world.healthy(), SECONDS)
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model="tiny", prompt="abc")
        assert caught.value.status_code == 503
        world.restart_host()
        assert wait_until(world.healthy, SECONDS)
        assert "".join(streamed(client, 30)) == "abc" * 10


def run(connector: VerbsConnector, model: str = "") -> int:
    return run_front_end(FrontEndSettings(model, (), "", port=0), connector)


@pytest.mark.parametrize("model", ["", "tiny"])
def test_what_will_never_be_served_ends_the_front_end_at_its_start(world, model):
    with pytest.raises(Refused, match="keys differ"):
        run(world.connector("another key that is long enough"), model)
    with pytest.raises(Refused, match="front end 0 is connected"):
        run(world.connector(), model)
    with pytest.raises(Refused, match="front end 7 does not exist"):
        run(VerbsConnector("127.0.0.1", world.number, 7, key=KEY), model)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Refused, match="same blink-numba"):
        patch.setattr("rdma.verbs.transport.RING_VERSION", RING_VERSION + 1)
        run(world.connector(), model)


def test_without_a_model_s_name_an_engine_must_be_there(fabric):
    with pytest.raises(TransportLost, match="is the engine running"):
        run(VerbsConnector("127.0.0.1", 1, key=KEY))


def test_an_engine_that_hides_its_model_is_a_clear_error(fabric):
    with InstantEngine(ring_name(), slots=32, max_model_len=128, vocab_size=259) as engine:
        host = RingHost(engine.memory, KEY, host="127.0.0.1")
        try:
            with pytest.raises(TransportError, match="--model"):
                run(VerbsConnector("127.0.0.1", host.port, key=KEY))
        finally:
            host.close()


def test_sigterm_is_an_orderly_end(fabric):
    world = World(fabric)
    settings = FrontEndSettings("", (), "", port=0, access_log=False)
    served = []

    def on_ready(number: int) -> None:
        served.append(number)
        os.kill(os.getpid(), signal.SIGTERM)

    with world.engine, pytest.raises(SystemExit) as caught:
        run_front_end(settings, world.connector(), on_ready)
    world.host.close()
    assert caught.value.code == 0
    assert served


def test_threads_end_with_the_front_end(fabric):
    before = threading.active_count()
    world = World(fabric)
    with world.engine:
        with world.front_end:
            assert wait_until(world.healthy, SECONDS)
        assert wait_until(lambda: world.host.sessions() == [], SECONDS)
        world.host.close()
    assert wait_until(lambda: threading.active_count() <= before, SECONDS)
