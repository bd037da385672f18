"""The server's times against the client's own clock, and its counts against what was asked."""

from __future__ import annotations

import json
import re
import time

import httpx
import pytest

from blink_numba.bench.instant import InstantEngine
from blink_numba.frontend.metrics import Histogram
from tests.frontend.harness import Running, ring_name

STEP_NS = 5_000_000


@pytest.fixture(scope="module")
def paced():
    name = ring_name()
    with (
        InstantEngine(name, slots=64, max_model_len=2048, vocab_size=259, step_ns=STEP_NS),
        Running(name) as running,
    ):
        yield running


def values(server) -> dict[str, float]:
    text = httpx.get(f"{server.url}/metrics").text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def value(of: dict[str, float], name: str) -> float:
    return of[f'{name}{{model_name="tiny"}}']


def test_histogram_is_cumulative():
    histogram = Histogram((1.0, 2.0))
    for sample in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(sample)
    assert histogram.cumulative() == [("1", 2), ("2", 3), ("+Inf", 4)]
    assert histogram.total == 12.0


def test_times_and_counts_are_those_of_the_client(paced):
    before = values(paced)
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 100, "stream": True}
    began = time.monotonic()
    first = None
    with httpx.stream("POST", f"{paced.url}/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if first is None and line.startswith("data: {"):
                first = time.monotonic()
                json.loads(line[6:])
    ended = time.monotonic()
    after = values(paced)

    def grown(name: str) -> float:
        return value(after, name) - value(before, name)

    assert first is not None
    assert grown("vllm:prompt_tokens_total") == 3
    assert grown("vllm:generation_tokens_total") == 100
    assert grown("vllm:time_to_first_token_seconds_count") == 1
    assert grown("blink_numba:tokenize_seconds_count") == 1
    assert 0.0 < grown("blink_numba:tokenize_seconds_sum") < grown("vllm:time_to_first_token_seconds_sum")
    assert grown("vllm:inter_token_latency_seconds_count") == 99
    assert grown("vllm:e2e_request_latency_seconds_count") == 1
    # The server's clock starts later and stops earlier than the client's, and never the other way round.
    assert 0.0 < grown("vllm:time_to_first_token_seconds_sum") <= first - began
    assert 99 * STEP_NS / 1e9 * 0.9 < grown("vllm:inter_token_latency_seconds_sum") <= ended - began
    assert grown("vllm:e2e_request_latency_seconds_sum") <= ended - began
    parts = ("queue", "prefill", "decode")
    together = sum(grown(f"vllm:request_{part}_time_seconds_sum") for part in parts)
    assert together == pytest.approx(grown("vllm:e2e_request_latency_seconds_sum"), rel=1e-3)


def test_the_text_is_prometheus(paced):
    text = httpx.get(f"{paced.url}/metrics").text
    name = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
    for line in text.splitlines():
        assert re.fullmatch(rf"# (HELP|TYPE) {name} .*|{name}(\{{.*\}})? [0-9.e+-]+", line), line
    for wanted in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                   "vllm:request_success_total", "blink_numba:graph_launches_total"):  # fmt: skip
        assert wanted in text
