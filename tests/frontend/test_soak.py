"""Saturation with cancels and dying clients: slots, blocks, threads, descriptors and memory stay flat.

Short by default; ``BLINK_NUMBA_SOAK_S=900`` is the real one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time

import httpx
import psutil
import pytest

from blink_numba.config import ServeConfig
from blink_numba.serving import Serving
from ring import layout as at
from ring.memory import RingMemory
from tests.frontend.harness import ring_name, wait_until
from tests.frontend.test_load import nothing_left

SECONDS = float(os.environ.get("BLINK_NUMBA_SOAK_S", "30"))
CLIENTS = 48
MEMORY_SLACK = 16 << 20  # bytes that allocator and caches may still grow by


def measure(pid: int) -> tuple[int, int, int]:
    """Threads, descriptors and resident bytes of a process."""
    process = psutil.Process(pid)
    return process.num_threads(), process.num_fds(), process.memory_info().rss


def show(before: dict, after: dict, done: list[int], seconds: float) -> None:
    """Print what was measured (seen with ``pytest -s``)."""
    print(
        f"\n{seconds:.0f} s of load: {done.count(200)} whole answers, {done.count(503)} refused as too many"
    )
    print(f"{'':10} {'threads':>14} {'descriptors':>14} {'MiB':>16}")
    for name, (threads, descriptors, memory) in after.items():
        first = before[name]
        print(f"{name:10} {f'{first[0]} → {threads}':>14} {f'{first[1]} → {descriptors}':>14} "
              f"{f'{first[2] / 2**20:.1f} → {memory / 2**20:.1f}':>16}")  # fmt: skip


async def die_in_the_middle(port: int, body: bytes, after_s: float) -> None:
    """Send a request and vanish without a farewell."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    )
    await asyncio.sleep(after_s)
    writer.transport.abort()
    del reader


async def one_client(url: str, port: int, rng: random.Random, until: float, done: list[int]) -> None:
    async with httpx.AsyncClient(timeout=120.0) as client:
        while time.monotonic() < until:
            body = {
                "model": "tiny", "prompt": "x" * rng.randint(1, 60), "max_tokens": rng.randint(1, 120),
                "n": rng.choice([1, 1, 2]), "stream": rng.random() < 0.7, "temperature": rng.choice([0, 1.0]),
                "stop": rng.choice([None, ["q"]]), "ignore_eos": True,
                "logprobs": rng.choice([None, None, None, 0, 20]),
            }  # fmt: skip
            dice = rng.random()
            if dice < 0.15:
                await die_in_the_middle(port, json.dumps(body).encode(), rng.random() * 0.1)
            elif dice < 0.3:
                async with client.stream(
                    "POST", f"{url}/v1/completions", json=body | {"stream": True}
                ) as response:
                    async for _ in response.aiter_bytes():
                        if rng.random() < 0.3:
                            break
            else:
                response = await client.post(f"{url}/v1/completions", json=body)
                assert response.status_code in (200, 503), response.text
                assert "error" not in response.text or response.status_code == 503
                done.append(response.status_code)


async def crowd(url: str, port: int, seconds: float, seed: int) -> list[int]:
    until, done = time.monotonic() + seconds, []
    rngs = [random.Random(seed * 1000 + k) for k in range(CLIENTS)]
    await asyncio.gather(*[one_client(url, port, rng, until, done) for rng in rngs])
    return done


@pytest.mark.timeout(int(SECONDS * 2) + 300)
def test_soak():
    config = ServeConfig(
        model="tiny", backend="cpu", port=0, ring=ring_name(), slots=64, max_num_seqs=16, kv_tokens=4096,
        max_model_len=256, log_level="error", access_log=False, queue_timeout=5.0,
    )  # fmt: skip
    with Serving(config, lambda line: None) as serving, RingMemory.attach(config.ring_name) as ring:
        port = int(serving.url.rpartition(":")[2])
        blocks = int(ring.view.status[at.S_BLOCKS_FREE])
        pids = {"engine": serving.engine_pid, "front end": serving.front_end_pid}
        asyncio.run(crowd(serving.url, port, SECONDS / 3, 1))
        assert wait_until(lambda: nothing_left(ring, blocks))
        before = {name: measure(pid) for name, pid in pids.items()}
        done = asyncio.run(crowd(serving.url, port, SECONDS * 2 / 3, 2))
        assert wait_until(lambda: nothing_left(ring, blocks))
        assert done.count(200) > CLIENTS
        assert wait_until(lambda: measure(pids["front end"])[1] <= before["front end"][1])
        after = {name: measure(pid) for name, pid in pids.items()}
        show(before, after, done, SECONDS * 2 / 3)
        for name, (threads, descriptors, memory) in after.items():
            assert threads <= before[name][0], name
            assert descriptors <= before[name][1], name
            assert memory <= before[name][2] * 1.05 + MEMORY_SLACK, name
        assert (serving.engine_pid, serving.front_end_pid) == tuple(pids.values())
