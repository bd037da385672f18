"""An open-loop load over HTTP against any server with OpenAI's API: the paper's main figure.

Requests arrive at given rates whatever the server does (Poisson), with lengths drawn as in
ShareGPT (mean 1019 in, 463 out in the paper) or read from a file. A request that fails is
counted apart and leaves no latency behind. With burners, each rate runs twice, idle and
beside processes that keep the CPUs busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import typer
import uvloop

from blink_numba.bench.burners import Burners
from blink_numba.bench.report import Row

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
# Log-normal fits of ShareGPT's lengths: (mean, sigma of the logarithm).
SHAREGPT_IN, SHAREGPT_OUT = (1019.0, 1.2), (463.0, 1.0)


@dataclass(frozen=True)
class Length:
    """Tokens of one request."""

    prompt: int
    answer: int


@dataclass
class Outcome:
    """What came of a request; times in seconds of the client's clock.

    Attributes
    ----------
    arrived : float
        When it should have been sent: waiting in the client counts too.
    """

    arrived: float
    first: float | None = None
    last: float = 0.0
    tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    error: str | None = None


def draw_lengths(count: int, scale: float, most_in: int, most_out: int, seed: int) -> list[Length]:
    """Lengths distributed as ShareGPT's, times `scale`."""
    rng = np.random.default_rng(seed)

    def draw(mean: float, sigma: float, most: int) -> np.ndarray:
        location = np.log(mean * scale) - sigma**2 / 2  # so that the mean is right
        return np.clip(rng.lognormal(location, sigma, count).astype(int), 1, most)

    prompts, answers = draw(*SHAREGPT_IN, most_in), draw(*SHAREGPT_OUT, most_out)
    return [Length(int(p), int(a)) for p, a in zip(prompts, answers, strict=True)]


def read_lengths(file: str, count: int, seed: int) -> list[Length]:
    """`count` lengths out of a file of JSON lines with ``prompt`` and ``answer``, in random order."""
    known = [json.loads(line) for line in Path(file).read_text().splitlines() if line.strip()]
    rng = random.Random(seed)
    return [Length(int(one["prompt"]), int(one["answer"])) for one in rng.choices(known, k=count)]


class LoadGenerator:
    """Sends requests to a server and times what comes back.

    Parameters
    ----------
    url : str
        Base address, without ``/v1``.
    model : str
    vocab_size : int
        Prompts are random token ids below it.
    """

    def __init__(self, url: str, model: str, vocab_size: int, api_key: str, timeout_s: float) -> None:
        self._url, self._model, self._vocab_size = f"{url}/v1/completions", model, vocab_size
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s

    async def run(self, rate: float, lengths: list[Length], seed: int) -> list[Outcome]:
        """Send requests at `rate` a second; returns when all are answered or failed."""
        rng = random.Random(seed)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(timeout=self._timeout_s, limits=limits, headers=self._headers) as client:
            due = time.perf_counter()
            tasks = []
            for length in lengths:
                due += rng.expovariate(rate)
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                prompt = [rng.randrange(self._vocab_size) for _ in range(length.prompt)]
                tasks.append(asyncio.create_task(self._one(client, prompt, length.answer, Outcome(due))))
            return await asyncio.gather(*tasks)

    async def _one(
        self, client: httpx.AsyncClient, prompt: list[int], tokens: int, outcome: Outcome
    ) -> Outcome:
        body = {
            "model": self._model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        try:
            async with client.stream("POST", self._url, json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    outcome.error = f"status {response.status_code}"
                    return outcome
                async for line in response.aiter_lines():
                    self._take(line, outcome)
        except httpx.HTTPError as error:
            outcome.error = type(error).__name__
        if outcome.error is None and outcome.tokens != tokens:
            outcome.error = f"{outcome.tokens} of {tokens} tokens"
        return outcome

    @staticmethod
    def _take(line: str, outcome: Outcome) -> None:
        if not line.startswith("data: {"):
            return
        now = time.perf_counter()
        chunk = json.loads(line[6:])
        if "error" in chunk:
            outcome.error = chunk["error"]["message"]
            return
        if chunk.get("usage"):
            outcome.tokens = chunk["usage"]["completion_tokens"]
        if chunk["choices"]:
            if outcome.first is None:
                outcome.first = now
            else:
                outcome.gaps.append(now - outcome.last)
            outcome.last = now


def summarize(case: str, outcomes: list[Outcome], seconds: float) -> list[Row]:
    """Rows of one rate: latencies by percentile, throughput, failures."""
    good = [one for one in outcomes if one.error is None and one.first is not None]
    failures = [one.error for one in outcomes if one.error is not None]
    rows = [
        Row(
            f"{case}/failed",
            len(failures),
            "requests",
            0,
            "lower",
            reasons=sorted(set(map(str, failures)))[:8],
        ),
        Row(f"{case}/request_s", len(good) / seconds, "req/s"),
        Row(f"{case}/tokens_s", sum(one.tokens for one in good) / seconds, "tok/s"),
    ]
    series = {
        "ttft_ms": [(one.first - one.arrived) * 1e3 for one in good if one.first is not None],
        "tpot_ms": [
            (one.last - one.first) * 1e3 / (one.tokens - 1) for one in good if one.first and one.tokens > 1
        ],
        "itl_ms": [gap * 1e3 for one in good for gap in one.gaps],
        "e2e_ms": [(one.last - one.arrived) * 1e3 for one in good],
    }
    for name, values in series.items():
        if values:
            quantiles = np.percentile(values, PERCENTILES)
            extra = {f"p{p:g}": float(q) for p, q in zip(PERCENTILES, quantiles, strict=True)}
            rows.append(
                Row(f"{case}/{name}", extra["p50"], "ms", None, "lower", mean=float(np.mean(values)), **extra)
            )
    return rows


@dataclass(frozen=True)
class Cores:
    """Who runs where: client and front end as a network card would, beside the host's own work.

    Attributes
    ----------
    client, front_end, others : set of int
        All cores, each of them, where there are fewer than four.
    """

    client: set[int]
    front_end: set[int]
    others: set[int]

    @classmethod
    def of_this_process(cls) -> Cores:
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 4:
            return cls(set(cores), set(cores), set(cores))
        return cls({cores[0]}, {cores[1]}, set(cores[2:]))


@contextlib.contextmanager
def _served_here(options: dict[str, Any], cores: Cores) -> Iterator[str]:
    """A server of this process's making; its engine runs where the burners will."""
    from blink_numba.config import load_config
    from blink_numba.serving import Serving

    config, before = load_config(options), os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores.others)
    try:
        with Serving(config, lambda line: None) as serving:
            os.sched_setaffinity(0, cores.client)
            yield serving.url
    finally:
        os.sched_setaffinity(0, before)


def _targets(url: str, launches: str, options: dict[str, Any], cores: Cores) -> Iterator[tuple[str, Any]]:
    """Names and context managers of the servers to load, one after the other."""
    if url:
        yield "", contextlib.nullcontext(url.rstrip("/").removesuffix("/v1"))
        return
    pinned = ",".join(map(str, sorted(cores.front_end)))
    for launch in launches.split(","):
        name = "cpu" if options["backend"] == "cpu" else launch
        yield f"{name}/", _served_here({**options, "launch": launch, "front_end_cpus": pinned}, cores)


def run(
    url: Annotated[str, typer.Option(help="Server with OpenAI's API; one is started if none is given.")] = "",
    model: Annotated[str, typer.Option(help="Model to ask for.")] = "smollm2",
    rates: Annotated[str, typer.Option(help="Requests a second, commas between.")] = "1,2,4",
    seconds: Annotated[float, typer.Option(help="How long each rate lasts.")] = 30.0,
    burners: Annotated[int, typer.Option(help="CPU burners beside a second run of each rate.")] = 0,
    scale: Annotated[float, typer.Option(help="Lengths, as a part of ShareGPT's.")] = 1.0,
    max_prompt: Annotated[int, typer.Option(help="Longest prompt, in tokens.")] = 4096,
    max_answer: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 2048,
    lengths_file: Annotated[str, typer.Option(help="JSON lines with prompt and answer lengths.")] = "",
    vocab_size: Annotated[int, typer.Option(help="Prompts are random ids below it.")] = 256,
    api_key: Annotated[str, typer.Option(help="Sent as a bearer token.")] = "",
    timeout_s: Annotated[float, typer.Option(help="A request that takes longer has failed.")] = 300.0,
    seed: Annotated[int, typer.Option(help="Of arrivals, lengths and prompts.")] = 1,
    plot: Annotated[str, typer.Option(help="Also draw the figure to this SVG or PNG file.")] = "",
    backend: Annotated[str, typer.Option(help="Of a server started here: auto, cpu or cuda.")] = "auto",
    dummy: Annotated[bool, typer.Option(help="Of a server started here: random weights.")] = False,
    max_num_seqs: Annotated[int | None, typer.Option(help="Of a server started here.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Of a server started here.")] = None,
    launches: Annotated[
        str, typer.Option(help="Of servers started here, with commas: their launch strategies.")
    ] = "faf",
) -> list[Row]:
    """Latency and throughput over a list of request rates, idle and beside CPU burners.

    Cases are ``<launch>/r<rate>/<idle|burners>/<metric>``, without the launch strategy for a server
    that was not started here; a latency's value is its P50, with P90, P99 and P99.9 in further
    fields. Client and front end have a core each, as on a network card; engine and burners the rest.
    """
    cores = Cores.of_this_process()
    options = {
        "model": model, "backend": backend, "dummy": dummy, "port": 0, "max_num_seqs": max_num_seqs,
        "max_model_len": max_model_len, "access_log": False, "log_level": "warning", "queue_timeout": 60.0,
    }  # fmt: skip
    rows: list[Row] = []
    for name, serving in _targets(url, launches, options, cores):
        with serving as base:
            generator = LoadGenerator(base, model, vocab_size, api_key, timeout_s)
            for rate in (float(each) for each in rates.split(",")):
                count = max(1, round(rate * seconds))
                if lengths_file:
                    lengths = read_lengths(lengths_file, count, seed)
                else:
                    lengths = draw_lengths(count, scale, max_prompt, max_answer, seed)
                for load in [0, burners] if burners else [0]:
                    case = f"{name}r{rate:g}/{'burners' if load else 'idle'}"
                    with Burners(load, cores.others):
                        rows += _measure(generator, case, rate, lengths, seed)
    if plot:
        draw(rows, plot)
    return rows


def _measure(generator: LoadGenerator, case: str, rate: float, lengths: list[Length], seed: int) -> list[Row]:
    began = time.perf_counter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcomes = runner.run(generator.run(rate, lengths, seed))
    return summarize(case, outcomes, time.perf_counter() - began)


def draw(rows: list[Row], file: str) -> None:
    """P99 TTFT and TPOT and throughput over the rate, a line for each server, idle and beside burners."""
    from matplotlib.figure import Figure

    metrics = {"ttft_ms": ("P99 TTFT, ms", "p99"), "tpot_ms": ("P99 TPOT, ms", "p99"),
               "tokens_s": ("throughput, tokens/s", None)}  # fmt: skip
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for axes, (metric, (label, percentile)) in zip(figure.subplots(1, 3), metrics.items(), strict=True):
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            *server, rate, load, name = row.case.split("/")
            if name == metric:
                value = row.extra[percentile] if percentile else row.value
                lines.setdefault(" ".join([*server, load]), []).append((float(rate[1:]), value))
        for line, points in lines.items():
            style = "--" if "burners" in line else "-"
            axes.plot(*zip(*points, strict=True), marker="o", ls=style, label=line)
        axes.set_xlabel("requests/s")
        axes.set_ylabel(label)
        axes.set_ylim(0.0, 1.05 * axes.get_ylim()[1])
        axes.legend()
    figure.savefig(file)
