"""A model served from the GPU, as the official client sees it. No CUDA in the test's own process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import openai
import pytest

from blink_numba.bench.flight import FlightTail, decode_steps
from blink_numba.config import ServeConfig
from blink_numba.serving import Serving
from ring import layout as at
from ring.memory import RingMemory
from ring.states import DECODE_COMPLETED
from ring.words import RELEASE
from tests.gpu.models import served_model

pytestmark = pytest.mark.timeout(240, method="thread")  # the first test starts the engine
CLIENTS, SEATS = 64, 32
RANDOM = np.random.default_rng(31)


@pytest.fixture(scope="module")
def serving():
    """A server whose answers do not depend on the batch."""
    config = ServeConfig(
        model=served_model(), served_model_name=["served"], backend="cuda", batch_invariant=True,
        max_num_seqs=SEATS, max_model_len=2048, kv_tokens=SEATS * 512, slots=128, port=0, access_log=False,
        log_level="warning", ring=f"test-{os.getpid()}-serving",
    )  # fmt: skip
    with Serving(config, lambda line: print(line, flush=True)) as running:
        yield running


@pytest.fixture(scope="module")
def client(serving):
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0, timeout=60.0) as client:
        yield client


@pytest.fixture
def ring(serving):
    with RingMemory.attach(f"test-{os.getpid()}-serving") as memory:
        yield memory


def complete(client: openai.OpenAI, prompt: str, tokens: int) -> str:
    made = client.completions.create(
        model="served", prompt=prompt, max_tokens=tokens, temperature=0, extra_body={"ignore_eos": True}
    )
    assert made.usage is not None
    assert made.usage.completion_tokens == tokens
    return made.choices[0].text


def test_streams_as_it_answers_at_once(client):
    chunks = client.completions.create(
        model="served", prompt="Once upon a time", max_tokens=40, temperature=0, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    streamed = "".join(chunk.choices[0].text for chunk in chunks)
    assert streamed == complete(client, "Once upon a time", 40)


def test_log_probabilities_follow_the_tokens_and_disturb_nobody(client):
    prompts = ["Once upon a time", "The ring is", "Blink:"]

    def ask(logprobs: int | None) -> list:
        return client.completions.create(
            model="served", prompt=prompts, max_tokens=30, temperature=0, logprobs=logprobs,
            extra_body={"ignore_eos": True},
        ).choices  # fmt: skip

    for plain, few, many in zip(ask(None), ask(2), ask(20)):
        assert plain.text == few.text == many.text
        assert plain.logprobs is None
        assert few.logprobs.token_logprobs == many.logprobs.token_logprobs
        assert len(many.logprobs.tokens) == 30
        for token, value, top in zip(
            many.logprobs.tokens, many.logprobs.token_logprobs, many.logprobs.top_logprobs
        ):
            assert value == max(top.values()) == top[token] <= 0.0
            assert sum(np.exp(list(top.values()))) < 1.0 + 1e-4


def test_many_clients_and_cancels_leak_nothing(serving, client, ring):
    prompts = [f"Client {number} asks about {'many ' * (number % 7)}things:" for number in range(CLIENTS)]
    lengths = RANDOM.integers(8, 200, CLIENTS).tolist()

    async def ask(remote: openai.AsyncOpenAI, number: int) -> str | None:
        stream = await remote.completions.create(
            model="served", prompt=prompts[number], max_tokens=lengths[number], temperature=0, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        text, chunks = "", 0
        async for chunk in stream:
            text += chunk.choices[0].text
            chunks += 1
            if number % 4 == 0 and chunks == 1 + number // 8:
                await stream.close()  # the client goes away
                return None
        return text

    async def all_clients() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as remote:
            return await asyncio.gather(*(ask(remote, number) for number in range(CLIENTS)))

    answers = asyncio.run(all_clients())
    assert_nothing_leaked(serving, ring)
    finished = [number for number, answer in enumerate(answers) if answer is not None]
    assert len(finished) >= CLIENTS * 3 // 4
    for number in finished[::6]:
        assert answers[number] == complete(client, prompts[number], lengths[number]), f"client {number}"


def assert_nothing_leaked(serving: Serving, ring: RingMemory) -> None:
    """All seats and blocks are free, nobody waits, and every slot was released."""
    status = ring.view.status
    assert serving._engine is not None
    blocks = serving._engine.info["blocks"]
    give_up = time.monotonic() + 20.0

    def quiet() -> bool:
        records = ring.view.ctl.reshape(-1, at.CTL_WORDS)[:, at.W0]
        over = (records & 0xF == DECODE_COMPLETED) & (ring.view.req & 0xFF == RELEASE)
        free = (status[at.S_SEATS_USED], status[at.S_WAITING], status[at.S_BLOCKS_FREE]) == (0, 0, blocks)
        return bool(free and np.all(over | (records == 0)))

    while not quiet():
        assert time.monotonic() < give_up, f"leaked: {status[:18].tolist()}, {blocks} blocks"
        time.sleep(0.05)


class Talking(threading.Thread):
    """Streams the same answer again and again; `tokens` counts what arrived."""

    def __init__(self, client: openai.OpenAI) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._enough = threading.Event()
        self.tokens = 0
        self.answers: list[str] = []

    def run(self) -> None:
        while not self._enough.is_set():
            text = ""
            for chunk in self._client.completions.create(
                model="served", prompt="Tell me more.", max_tokens=800, temperature=0, stream=True,
                extra_body={"ignore_eos": True},
            ):  # fmt: skip
                text += chunk.choices[0].text
                self.tokens += 1
            self.answers.append(text)

    def await_tokens(self, more: int) -> None:
        wanted, give_up = self.tokens + more, time.monotonic() + 30.0
        while self.tokens < wanted:
            assert self.is_alive(), "the stream broke off"
            assert time.monotonic() < give_up, f"{self.tokens} of {wanted} chunks arrived"
            time.sleep(0.005)

    def finish(self) -> list[str]:
        self._enough.set()
        self.join(60.0)
        assert not self.is_alive()
        return self.answers


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_tokens_flow_while_the_engines_host_process_is_stopped(serving, client, ring, record_property):
    before = complete(client, "Is anybody there?", 50)
    talking = Talking(client)
    talking.start()
    talking.await_tokens(100)
    running = FlightTail(ring.view.flight)
    talking.await_tokens(200)
    record_property("step_us_running", float(np.median(decode_steps(running.entries()))))
    os.kill(serving.engine_pid, signal.SIGSTOP)
    try:
        while process_state(serving.engine_pid) != "T":
            time.sleep(0.001)
        stopped = FlightTail(ring.view.flight)
        talking.await_tokens(400)
        assert complete(client, "Is anybody there?", 50) == before, "a new request, admitted meanwhile"
        talking.await_tokens(400)
        record_property("step_us_stopped", float(np.median(decode_steps(stopped.entries()))))
        assert process_state(serving.engine_pid) == "T"
    finally:
        os.kill(serving.engine_pid, signal.SIGCONT)
    talking.await_tokens(200)
    assert complete(client, "Is anybody there?", 50) == before
    answers = talking.finish()
    assert len(set(answers)) == 1, "an answer changed"
    assert_nothing_leaked(serving, ring)
