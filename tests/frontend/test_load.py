"""Many clients at once against the real thing, some of which change their mind.

Every answer that is finished is the one that the same request gets alone, and afterwards
every slot is EMPTY and every KV block free.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import httpx
import numpy as np
import openai
import pytest

from blink_numba.config import ServeConfig
from blink_numba.runtime import EngineConfig, LocalEngine
from blink_numba.serving import Serving
from rdma.port import FrontEndPort
from rdma.shm import ShmTransport
from rdma.submit import Request
from ring import layout as at
from ring.memory import RingMemory
from ring.states import EMPTY, Reason, slot_state
from tests.frontend.harness import ring_name, wait_until


@dataclass(frozen=True)
class Asked:
    """A request: which prompt, how long an answer."""

    prompt: str
    max_tokens: int


def all_slots_empty(ring: RingMemory) -> bool:
    view = ring.view
    return all(
        slot_state(int(view.ctl[slot * at.CTL_WORDS]), int(view.req[slot])) == EMPTY
        for slot in range(ring.geometry.slots)
    )


def nothing_left(ring: RingMemory, blocks: int) -> bool:
    """Whether the engine is as it was before the first request."""
    status = ring.view.status
    return all_slots_empty(ring) and status[at.S_SEATS_USED] == 0 and status[at.S_BLOCKS_FREE] == blocks


async def ask(client: openai.AsyncOpenAI, model: str, asked: Asked) -> str:
    made = await client.completions.create(
        model=model, prompt=asked.prompt, max_tokens=asked.max_tokens, temperature=0
    )
    return made.choices[0].text


async def stream(client: openai.AsyncOpenAI, model: str, asked: Asked, stop_after: int | None) -> str | None:
    """The text, or None after leaving in the middle."""
    text, chunks = "", 0
    async with await client.completions.create(
        model=model, prompt=asked.prompt, max_tokens=asked.max_tokens, temperature=0, stream=True
    ) as made:
        async for chunk in made:
            text += chunk.choices[0].text
            chunks += 1
            if stop_after is not None and chunks >= stop_after:
                return None
    return text


async def leave_at_once(client: openai.AsyncOpenAI, model: str, asked: Asked, after_s: float) -> None:
    """Ask, and hang up before the answer."""
    try:
        await asyncio.wait_for(ask(client, model, asked), after_s)
    except TimeoutError:
        return


async def crowd(
    url: str, model: str, pool: list[Asked], alone: dict[Asked, str], clients: int, seed: int
) -> int:
    """`clients` at once, each with a few requests; how many answers were compared."""
    rng = random.Random(seed)
    plans = [[(rng.choice(pool), rng.random(), rng.randint(1, 6)) for _ in range(3)] for _ in range(clients)]
    compared = 0

    async def one(plan) -> None:
        nonlocal compared
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=240
        ) as client:
            for asked, dice, count in plan:
                if dice < 0.15:
                    await leave_at_once(client, model, asked, 0.02 * count)
                    continue
                if dice < 0.3:
                    await stream(client, model, asked, stop_after=count)
                    continue
                text = await (ask(client, model, asked) if dice < 0.6 else stream(client, model, asked, None))
                assert text == alone[asked]
                compared += 1

    await asyncio.gather(*[one(plan) for plan in plans])
    return compared


async def answers_alone(url: str, model: str, pool: list[Asked], key: str = "none") -> dict[Asked, str]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, timeout=240) as client:
        return {asked: await ask(client, model, asked) for asked in pool}


@pytest.mark.parametrize(
    ("model", "clients", "prompts", "longest", "options"),
    [
        ("tiny", 64, 24, 60, {"max_num_seqs": 16, "slots": 128, "kv_tokens": 2048, "max_model_len": 512}),
        ("smollm2", 16, 12, 24, {"max_num_seqs": 8, "slots": 64, "kv_tokens": 2048, "max_model_len": 512}),
    ],
)
def test_a_crowd_gets_the_answers_of_one(model, clients, prompts, longest, options):
    rng = random.Random(7)
    words = ["the", "ring", "of", "slots", "is", "polled", "by", "one", "block", "and", "no", "host"]
    pool = [
        Asked(" ".join(rng.choices(words, k=rng.randint(1, 20))), rng.randint(1, longest))
        for _ in range(prompts)
    ]
    config = ServeConfig(model=model, backend="cpu", port=0, ring=ring_name(), log_level="warning",
                         access_log=False, queue_timeout=120, **options)  # fmt: skip
    with Serving(config, lambda line: None) as serving:
        with RingMemory.attach(config.ring_name) as ring:
            blocks = int(ring.view.status[at.S_BLOCKS_FREE])
            alone = asyncio.run(answers_alone(serving.url, model, pool))
            assert asyncio.run(crowd(serving.url, model, pool, alone, clients, seed=1)) > clients
            assert wait_until(lambda: nothing_left(ring, blocks)), ring.view.status[:20]
        # as of the front end's last look at the scheduler's status
        none_runs = f'vllm:num_requests_running{{model_name="{model}"}} 0.0'
        assert wait_until(lambda: none_runs in httpx.get(f"{serving.url}/metrics").text)


def test_5000_requests_through_64_slots_leak_nothing():
    """Straight through the port: every request ends once, with the answer of its like."""
    config = EngineConfig(model="tiny", backend="cpu", ring_name=ring_name(), slots=64, max_seats=16,
                          kv_tokens=2048, max_model_len=256)  # fmt: skip
    rng = np.random.default_rng(3)
    kinds = [
        Request(rng.integers(0, 256, rng.integers(1, 40)).astype(np.int32), int(rng.integers(1, 12)))
        for _ in range(16)
    ]
    with LocalEngine(config) as engine, FrontEndPort(ShmTransport.attach(engine.ring_name)) as port:
        blocks = int(engine.ring.view.status[at.S_BLOCKS_FREE])
        free = port.free_slots()
        expected: dict[int, list[int]] = {}
        live: dict = {}
        submitted = ended = cancelled = 0
        while ended < 5000:
            room = min(port.free_slots(), 5000 - submitted)
            batch = rng.integers(0, len(kinds), room).tolist()
            for kind, handle in zip(batch, port.submit_many([kinds[k] for k in batch]), strict=True):
                live[handle] = (kind, [])
                submitted += 1
                if submitted % 17 == 0:
                    cancelled += port.cancel(handle)
            for event in port.poll():
                kind, tokens = live[event.handle]
                tokens += event.tokens.tolist()
                if event.reason is not Reason.NONE:
                    del live[event.handle]
                    ended += 1
                    assert event.usage == len(tokens)
                    if event.reason in (Reason.STOP, Reason.LENGTH):
                        assert expected.setdefault(kind, tokens) == tokens
                    else:
                        assert event.reason is Reason.CANCELLED
        assert len(expected) == len(kinds)
        assert cancelled > 100
        assert port.live() == 0
        assert port.free_slots() == free
        assert wait_until(lambda: nothing_left(engine.ring, blocks))
