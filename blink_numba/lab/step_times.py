"""How long steps take: measured tables, a roofline where nothing was measured, and host overheads."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphs.step_io import EngineSpec
from scheduler.simulator import StepTimes

TABLES = Path(__file__).parent / "tables"
_QUANTILES = 4096  # of a distribution of gaps


@dataclass(frozen=True)
class Gap:
    """Time from the end of a step to the start of the next, in microseconds.

    A lognormal given by its mean and 99th percentile; a constant where they are equal.
    """

    mean_us: float
    p99_us: float
    source: str = ""

    def quantiles(self) -> np.ndarray:
        """Nanoseconds at evenly spaced probabilities; float64."""
        if self.p99_us <= self.mean_us:
            return np.array([self.mean_us * 1e3])
        ratio = math.log(self.p99_us / self.mean_us)
        z = 2.3263478740408408  # 99 % of a normal distribution
        sigma = z - math.sqrt(max(z * z - 2 * ratio, 0.0))
        mu = math.log(self.mean_us) - sigma * sigma / 2
        p = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        return np.exp(mu + sigma * _normal_quantile(p)) * 1e3


def _normal_quantile(p: np.ndarray) -> np.ndarray:
    from statistics import NormalDist

    inverse = NormalDist().inv_cdf
    return np.array([inverse(x) for x in p])


# Where the scheduler runs and who else uses the host's cores: step time beyond the graph's own
# back-to-back time, on one H200 (135M-like graph of 903 µs, batch 16; 32 burners on 16 cores).
GAPS = {
    "faf": Gap(4.1, 4.1, "fire-and-forget launch from the device"),
    "tail": Gap(4.45, 4.45, "self tail launch"),
    "while": Gap(4.5, 4.5, "conditional WHILE graph"),
    "host": Gap(15.6, 40.8, "host launch, synchronised each step, idle host"),
    "faf-loaded": Gap(4.1, 7.0, "fire-and-forget launch from the device, 32 CPU burners"),
    "host-loaded": Gap(750.0, 7368.0, "host launch, synchronised each step, 32 CPU burners"),
}


@dataclass(frozen=True)
class Table:
    """Step times of one engine on one machine.

    Attributes
    ----------
    name, source : str
        What and where; how it was come by.
    decode_batch, decode_context : sequence
        Axes: rows of the graph; tokens of all rows in the cache. Two points at least.
    decode_us : 2-D sequence
    prefill_tokens, prefill_depth : sequence
        Axes: tokens of the graph; mean position of its tokens.
    prefill_us : 2-D sequence
    spec : dict
        What `graphs.step_io.EngineSpec` it was measured with, as far as it is known.
    pads : bool
        Whether a step takes as long as its graph has rows (a GPU's), or as there are rows (the CPU's).
    """

    name: str
    source: str
    decode_batch: Sequence[float]
    decode_context: Sequence[float]
    decode_us: Sequence[Sequence[float]]
    prefill_tokens: Sequence[float]
    prefill_depth: Sequence[float]
    prefill_us: Sequence[Sequence[float]]
    spec: dict[str, Any]
    pads: bool = True

    def times(self, gap: Gap | str = "faf") -> StepTimes:
        """For the simulator, with what a launch strategy adds between steps."""
        if isinstance(gap, str):
            if gap not in GAPS:
                raise ValueError(f"no launch strategy {gap!r}; there are {', '.join(GAPS)}")
            gap = GAPS[gap]
        axes = [
            np.asarray(axis, np.float64)
            for axis in (self.decode_batch, self.decode_context, self.prefill_tokens, self.prefill_depth)
        ]
        for axis in axes:
            if len(axis) < 2 or np.any(np.diff(axis) <= 0):
                raise ValueError(f"table {self.name!r}: an axis must ascend and have two points, got {axis}")
        decode = np.asarray(self.decode_us, np.float64) * 1e3
        prefill = np.asarray(self.prefill_us, np.float64) * 1e3
        if decode.shape != (len(axes[0]), len(axes[1])) or prefill.shape != (len(axes[2]), len(axes[3])):
            raise ValueError(
                f"table {self.name!r}: shapes {decode.shape}, {prefill.shape} do not fit the axes"
            )
        return StepTimes(axes[0], axes[1], decode.ravel(), axes[2], axes[3], prefill.ravel(), gap.quantiles())

    def engine(
        self,
        *,
        seats: int = 16,
        block_size: int = 16,
        max_model_len: int = 8192,
        kv_tokens: int | None = None,
        prefill_tokens: tuple[int, ...] = (256, 1024, 2048),
        prefill_sequences: int = 8,
    ) -> EngineSpec:
        """Shapes of an engine to simulate on this table; by default its cache holds every seat's longest."""
        batches = [1 << k for k in range(seats.bit_length()) if 1 << k < seats]
        tokens = kv_tokens if kv_tokens is not None else seats * max_model_len
        spec = EngineSpec(
            seats=seats,
            decode_batches=(*batches, seats),
            prefill_tokens=prefill_tokens,
            prefill_sequences=prefill_sequences,
            block_size=block_size,
            blocks=-(-tokens // block_size),
            blocks_per_seat=-(-max_model_len // block_size),
            max_model_len=max_model_len,
            vocab_size=32_000,
            eos_ids=(),
        )
        return spec if self.pads else unpadded(spec)

    def save(self, path: Path | str) -> None:
        """Write as JSON."""
        Path(path).write_text(json.dumps(self.__dict__, indent=1) + "\n")


def unpadded(spec: EngineSpec) -> EngineSpec:
    """The shapes of an engine that computes only the rows there are: a graph for each number of them."""
    return replace(
        spec,
        decode_batches=tuple(range(1, spec.seats + 1)),
        prefill_tokens=tuple(range(1, spec.prefill_tokens[-1] + 1)),
    )


def table(name: str | Path) -> Table:
    """A shipped table by its name, or one from a JSON file.

    Raises
    ------
    ValueError
        There is none of that name; the message lists those that ship.
    """
    path = TABLES / f"{name}.json" if not str(name).endswith(".json") else Path(name)
    if not path.is_file():
        raise ValueError(f"no table of step times {str(name)!r}; shipped are {', '.join(tables())}")
    return Table(**json.loads(path.read_text()))


def tables() -> list[str]:
    """Names of the shipped tables."""
    return sorted(path.stem for path in TABLES.glob("*.json"))


def roofline(
    *,
    parameters: float,
    kv_bytes_per_token: float,
    memory_gb_s: float,
    tflops: float,
    overhead_us: float = 300.0,
    bytes_per_parameter: float = 2.0,
) -> Table:
    """A table from first principles: a decode reads weights and cache, a prefill multiplies.

    Parameters
    ----------
    parameters : float
        Weights that a step reads (of a mixture of experts: those active).
    kv_bytes_per_token : float
    memory_gb_s, tflops : float
        What the device attains, not its data sheet.
    overhead_us : float
        Of the kernels of a step, whatever its size.
    """
    batch, context = [1.0, 8, 16, 32, 64, 128, 256], [0.0, 4096, 65_536, 1_048_576]
    tokens, depth = [1.0, 64, 256, 1024, 4096, 16_384], [0.0, 1024, 8192, 131_072]
    weights_us = parameters * bytes_per_parameter / memory_gb_s / 1e3

    def multiply_us(rows: float) -> float:
        return 2 * parameters * rows / tflops / 1e6

    decode = [
        [
            overhead_us + max(weights_us, multiply_us(b)) + c * kv_bytes_per_token / memory_gb_s / 1e3
            for c in context
        ]
        for b in batch
    ]
    # attention of a prefill: each token multiplies with all before it, twice as many operations as bytes
    prefill = [
        [
            overhead_us + max(weights_us, multiply_us(t)) + 2 * t * d * kv_bytes_per_token / tflops / 1e6
            for d in depth
        ]
        for t in tokens
    ]
    return Table(
        "roofline",
        f"{parameters:g} parameters, {memory_gb_s:g} GB/s, {tflops:g} TFLOP/s",
        batch,
        context,
        decode,
        tokens,
        depth,
        prefill,
        {},
    )


def constant(step_us: float, prefill_us: float | None = None) -> Table:
    """Every step takes the same time: for tests against queueing theory."""
    other = step_us if prefill_us is None else prefill_us
    axis = [0.0, 1.0]
    return Table(
        "constant", f"{step_us:g} us", axis, axis, [[step_us] * 2] * 2, axis, axis, [[other] * 2] * 2, {}
    )
