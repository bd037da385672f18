"""What arrives: when, how long its prompt, how long its answer, whose.

A workload is `scheduler.simulator.Requests`, whatever made it. Lengths come from a fit to
ShareGPT's published means, from a trace, or from any function of a random generator.
"""

from __future__ import annotations

import csv
import datetime
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from scheduler.simulator import Requests

SECOND = 1_000_000_000  # nanoseconds

# Means of ShareGPT conversations as the paper reports them (section 6): tokens in, tokens out.
SHAREGPT_PROMPT, SHAREGPT_OUTPUT = 1019, 463
# Spread of the logarithm: conversations are close to lognormal, prompts wider than answers.
SHAREGPT_PROMPT_SIGMA, SHAREGPT_OUTPUT_SIGMA = 1.2, 0.9


@dataclass(frozen=True)
class Lengths:
    """Draws ``(prompt, output)`` of `count` requests: int64[count] each."""

    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
    name: str = "lengths"


def _clipped_mean(mu: float, sigma: float, low: float, high: float) -> float:
    """Mean of a lognormal clipped to [low, high]."""

    def normal(x: float) -> float:
        return 0.5 * (1 + math.erf(x / math.sqrt(2)))

    a, b = (math.log(low) - mu) / sigma, (math.log(high) - mu) / sigma
    middle = math.exp(mu + sigma * sigma / 2) * (normal(b - sigma) - normal(a - sigma))
    return low * normal(a) + middle + high * (1 - normal(b))


def fit_lognormal(mean: float, sigma: float, low: float, high: float) -> float:
    """The `mu` whose lognormal, clipped to [low, high], has this mean.

    Raises
    ------
    ValueError
        No `mu` does: the mean lies outside the bounds.
    """
    if not low < mean < high:
        raise ValueError(f"a mean of {mean} cannot be had between {low} and {high}")
    bottom, top = math.log(low) - 4 * sigma, math.log(high) + 4 * sigma
    for _ in range(80):
        middle = (bottom + top) / 2
        if _clipped_mean(middle, sigma, low, high) < mean:
            bottom = middle
        else:
            top = middle
    return (bottom + top) / 2


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name}={value} must be positive and finite")


def lognormal(
    prompt_mean: float,
    output_mean: float,
    *,
    prompt_sigma: float = SHAREGPT_PROMPT_SIGMA,
    output_sigma: float = SHAREGPT_OUTPUT_SIGMA,
    longest: int = 4096,
) -> Lengths:
    """Lognormal lengths with the given means after clipping prompt and answer to half of `longest`."""
    _check_positive(prompt_sigma=prompt_sigma, output_sigma=output_sigma)
    high = longest // 2
    mu_in = fit_lognormal(prompt_mean, prompt_sigma, 1, high)
    mu_out = fit_lognormal(output_mean, output_sigma, 1, high)

    def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        prompt = np.clip(rng.lognormal(mu_in, prompt_sigma, count), 1, high)
        output = np.clip(rng.lognormal(mu_out, output_sigma, count), 1, high)
        return np.rint(prompt).astype(np.int64), np.rint(output).astype(np.int64)

    return Lengths(draw, f"lognormal-{prompt_mean:g}-{output_mean:g}")


def sharegpt(longest: int = 8192) -> Lengths:
    """Lengths with ShareGPT's means: 1019 tokens in, 463 out."""
    return lognormal(SHAREGPT_PROMPT, SHAREGPT_OUTPUT, longest=longest)


def fixed(prompt: int, output: int) -> Lengths:
    """All requests alike."""
    return Lengths(lambda _, count: (np.full(count, prompt), np.full(count, output)), f"{prompt}+{output}")


def poisson(
    rate: float,
    count: int,
    lengths: Lengths | None = None,
    *,
    seed: int = 0,
    tenants: int = 1,
    priorities: int = 1,
    deadline_s: float = 0.0,
) -> Requests:
    """Independent arrivals at `rate` requests a second. See `gamma`."""
    return gamma(
        rate, count, 1.0, lengths, seed=seed, tenants=tenants, priorities=priorities, deadline_s=deadline_s
    )


def gamma(
    rate: float,
    count: int,
    variation: float,
    lengths: Lengths | None = None,
    *,
    seed: int = 0,
    tenants: int = 1,
    priorities: int = 1,
    deadline_s: float = 0.0,
) -> Requests:
    """Arrivals whose gaps are gamma distributed: bursty above a variation of 1, regular below.

    Parameters
    ----------
    rate : float
        Requests a second.
    variation : float
        Standard deviation of a gap over its mean; 1 is Poisson.
    lengths : Lengths, optional
        Default: `sharegpt`.
    tenants, priorities : int
        Each request gets one of so many, at random.
    deadline_s : float
        Mean of exponential deadlines after arrival; 0: none.
    """
    _check_positive(rate=rate, count=count, variation=variation)
    rng = np.random.default_rng(seed)
    shape = 1.0 / variation**2
    gaps = rng.gamma(shape, 1.0 / (rate * shape), count)
    return _requests(rng, np.cumsum(gaps) * SECOND, lengths, tenants, priorities, deadline_s, users=0)


def closed_loop(
    users: int,
    count: int,
    lengths: Lengths | None = None,
    *,
    think_s: float = 0.0,
    seed: int = 0,
    tenants: int = 1,
    priorities: int = 1,
) -> Requests:
    """`users` users who each send their next request `think_s` seconds (exponential) after an answer."""
    if users < 1 or count < users:
        raise ValueError(f"users={users} must be at least 1 and at most count={count}")
    if not 0 <= think_s < math.inf:
        raise ValueError(f"think_s={think_s} must be a duration in seconds")
    rng = np.random.default_rng(seed)
    thinking = rng.exponential(think_s, count) * SECOND if think_s > 0 else np.zeros(count)
    return _requests(rng, thinking, lengths, tenants, priorities, 0.0, users=users)


def _requests(
    rng: np.random.Generator,
    arrive: np.ndarray,
    lengths: Lengths | None,
    tenants: int,
    priorities: int,
    deadline_s: float,
    users: int,
) -> Requests:
    if not 0 <= deadline_s < math.inf:
        raise ValueError(f"deadline_s={deadline_s} must be a duration in seconds")
    _check_positive(tenants=tenants, priorities=priorities)
    count = arrive.shape[0]
    prompt, output = (lengths or sharegpt()).draw(rng, count)
    deadline = np.rint(rng.exponential(deadline_s, count) * SECOND) + 1 if deadline_s > 0 else 0
    return Requests.of(
        np.rint(arrive),
        prompt,
        output,
        priority=rng.integers(0, priorities, count),
        tenant=rng.integers(0, tenants, count),
        deadline=deadline,
        users=users,
    )


def load_trace(path: Path | str, *, longest: int | None = None, speed: float = 1.0) -> Requests:
    """Requests of a published trace.

    Parameters
    ----------
    path : path
        Mooncake's JSON lines (``timestamp`` in ms, ``input_length``, ``output_length``), or the
        Azure LLM inference CSV (``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``).
    longest : int, optional
        Clip prompt and answer together to so many tokens, the prompt first.
    speed : float
        Arrivals come so much faster than recorded.

    Raises
    ------
    ValueError
        The file is neither, or empty; the message names the line.
    """
    path = Path(path)
    _check_positive(speed=speed)
    if longest is not None and longest < 2:
        raise ValueError(f"longest={longest} must leave a token for prompt and answer each")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = _mooncake(file) if path.suffix in (".jsonl", ".json") else _azure(file)
    except OSError as error:
        raise ValueError(f"the trace {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"the trace {path} is not text: {error}") from None
    if not rows:
        raise ValueError(f"{path} has no requests")
    rows.sort()
    times, prompt, output = (np.array(column) for column in zip(*rows))
    prompt, output = np.maximum(prompt, 1), np.maximum(output, 1)
    if longest is not None:
        output = np.minimum(output, longest - 1)
        prompt = np.minimum(prompt, longest - output)
    return Requests.of(np.rint((times - times[0]) * SECOND / speed), prompt, output)


MOST_TOKENS = 1 << 31


def _row(seconds: float, prompt: Any, output: Any) -> tuple[float, int, int]:
    """A request; `ValueError` for what is none."""
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is no time")
    lengths = []
    for value in (prompt, output):
        if isinstance(value, bool) or not 0 <= int(value) < MOST_TOKENS:
            raise ValueError(f"{value!r} is no number of tokens")
        lengths.append(int(value))
    return seconds, lengths[0], lengths[1]


def _mooncake(file: TextIO) -> list[tuple[float, int, int]]:
    rows = []
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            rows.append(_row(item["timestamp"] / 1e3, item["input_length"], item["output_length"]))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"{file.name}:{number} is not a line of a Mooncake trace: {error!r}") from error
    return rows


def _azure(file: TextIO) -> list[tuple[float, int, int]]:
    rows = []
    reader = csv.DictReader(file)
    wanted = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}
    if not wanted <= set(reader.fieldnames or ()):
        raise ValueError(f"{file.name} is not an Azure LLM trace: it has no columns {sorted(wanted)}")
    for row in reader:
        try:
            stamp = row["TIMESTAMP"][:26]  # seven decimals are written, six can be read
            moment = datetime.datetime.fromisoformat(stamp).replace(tzinfo=datetime.UTC)
            when = moment.timestamp()
            rows.append(_row(when, row["ContextTokens"], row["GeneratedTokens"]))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{file.name}:{reader.line_num} is not a line of an Azure LLM trace: {error}"
            ) from error
    return rows
