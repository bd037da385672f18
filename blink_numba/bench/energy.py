"""Joules a token by launch strategy, and what waiting costs: the GPU's own energy counter (NVML)."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from blink_numba.bench.report import Row
from blink_numba.bench.resident import answer_all, engine, port_of, random_prompts

PROMPT, TOKENS = 128, 256
ANSWER_S = 60.0


class Meter:
    """Energy that the first GPU has used.

    Raises
    ------
    RuntimeError
        When NVML cannot be used; the message names the remedy.
    """

    def __init__(self) -> None:
        try:
            import pynvml  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise RuntimeError("reading the GPU's energy needs NVML: pip install nvidia-ml-py") from None
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            pynvml.nvmlDeviceGetPowerUsage(self._handle)
        except pynvml.NVMLError as error:
            raise RuntimeError(f"NVML cannot read this GPU's power: {error}") from None
        self._nvml = pynvml

    def _counter(self) -> float | None:
        try:
            return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3
        except self._nvml.NVMLError:
            return None  # before Volta, or hidden from a virtual machine

    def watts(self) -> float:
        """Power now."""
        return self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3

    def measure(self, work: Any) -> tuple[float, float, str]:
        """Joules and seconds of ``work()``, and how they were read: ``counter`` or ``samples``."""
        first = self._counter()
        sampled = _Samples(self.watts)
        began = time.perf_counter()
        with sampled:
            work()
        seconds = time.perf_counter() - began
        last = self._counter()
        if first is None or last is None or last <= first:
            return sampled.mean() * seconds, seconds, "samples"
        return last - first, seconds, "counter"


class _Samples:
    """Reads `read` every 20 ms on a thread."""

    def __init__(self, read: Any) -> None:
        self._read = read
        self._values: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while True:
            self._values.append(self._read())
            if self._done.wait(0.02):
                return

    def mean(self) -> float:
        return sum(self._values) / len(self._values)

    def __enter__(self) -> _Samples:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()


def run(
    model: str = "smollm2", strategies: str = "faf,host", batches: str = "1,16", seconds: float = 4.0
) -> list[Row]:
    """Watts while nothing is asked, and joules a token of each batch, for each launch strategy.

    Parameters
    ----------
    model : str
        A shape; weights are random.
    seconds : float
        Least duration of each measurement: the counter moves some ten times a second.
    """
    from graphs._cuda import cuda

    meter = Meter()
    cuda.current_context()  # the clocks of a GPU with a context are what is compared
    sizes = [int(each) for each in batches.split(",")]
    rows = [_idle_row("no_scheduler/idle_w", meter, seconds)]
    for strategy in strategies.split(","):
        with engine(model, max(sizes), PROMPT + TOKENS, launch=strategy) as running, port_of(running) as port:
            rows.append(_idle_row(f"{strategy}/idle_w", meter, seconds))
            for batch in sizes:
                prompts = random_prompts(batch, PROMPT, running.spec.vocab_size)
                answer_all(port, prompts, 16, ANSWER_S)
                rows += _token_rows(f"{strategy}/b{batch}", meter, port, prompts, seconds, model)
    return rows


def _idle_row(case: str, meter: Meter, seconds: float) -> Row:
    joules, spent, source = meter.measure(lambda: time.sleep(seconds))
    return Row(case, joules / spent, "W", better="lower", source=source)


def _token_rows(
    case: str, meter: Meter, port: Any, prompts: Sequence[Any], seconds: float, model: str
) -> list[Row]:
    tokens = [0]

    def work() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            tokens[0] += sum(len(answer) for answer in answer_all(port, prompts, TOKENS, ANSWER_S))

    joules, spent, source = meter.measure(work)
    extra = {"model": model, "source": source, "tokens": tokens[0]}
    return [
        Row(f"{case}/j_per_token", joules / tokens[0], "J/token", better="lower", **extra),
        Row(f"{case}/w", joules / spent, "W", better="lower", **extra),
        Row(f"{case}/tok_s", tokens[0] / spent, "tok/s", **extra),
    ]
