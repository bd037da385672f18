"""Plots of simulations, one figure a question; matplotlib is imported at first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blink_numba.lab.metrics import Metrics
from scheduler.simulator import Outcome
from scheduler.simulator.events import BUCKETS_PER_DOUBLING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Distinct in hue and in lightness, in the order in which they are used.
COLOURS = ("#1f4e9c", "#d1661a", "#2a8c6e", "#a8326e", "#8a7a1f", "#6a4fb0", "#3fa7d6", "#7a7a7a", "#c0392b")
MARKERS = "osD^vP*Xh"


def _subplots(rows: int, columns: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")
    for axis in axes.ravel():
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, alpha=0.25, linewidth=0.6)
    return figure, axes


def style(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and marker of each name, the same in every figure made from the same names."""
    return {
        name: {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        for i, name in enumerate(names)
    }


LABELS = {
    "ttft_p50_ms": "median TTFT, ms",
    "ttft_p99_ms": "P99 TTFT, ms",
    "tpot_p50_ms": "median TPOT, ms",
    "tpot_p99_ms": "P99 TPOT, ms",
    "itl_p99_ms": "P99 ITL, ms",
    "e2e_p50_ms": "median end to end, ms",
    "e2e_mean_ms": "mean end to end, ms",
    "ttft_mean_ms": "mean TTFT, ms",
    "goodput": "goodput, requests/s",
    "throughput": "tokens/s",
    "fairness": "Jain's fairness index",
    "utilisation": "utilisation",
}


def load_curves(
    rows: Sequence[Mapping[str, Any]],
    metrics: Sequence[str] = ("ttft_p99_ms", "tpot_p99_ms"),
    *,
    unit: str = "requests/s",
    log: bool = True,
) -> Figure:
    """Each metric over the load, a line a policy; the median of the seeds, their range shaded."""
    names = list(dict.fromkeys(str(row["policy"]) for row in rows))
    figure, axes = _subplots(1, len(metrics), 5.2 * len(metrics), 3.8)
    looks = style(names)
    for axis, metric in zip(axes[0], metrics):
        for name in names:
            mine = [row for row in rows if row["policy"] == name]
            loads = sorted({row["load"] for row in mine})
            values = [[row[metric] for row in mine if row["load"] == load] for load in loads]
            axis.plot(
                loads,
                [float(np.median(v)) for v in values],
                label=name,
                linewidth=1.6,
                markersize=5,
                **looks[name],
            )
            axis.fill_between(
                loads,
                [min(v) for v in values],
                [max(v) for v in values],
                alpha=0.12,
                color=looks[name]["color"],
                linewidth=0,
            )
        if log and metric.endswith("_ms"):
            _log_if_wide(axis)
        axis.set_xlabel(f"load, {unit}")
        axis.set_ylabel(LABELS.get(metric, metric))
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure


WIDE = 6.0  # a range of more than this factor is drawn on a logarithmic axis


def _log_if_wide(axis: Axes) -> None:
    """A logarithmic axis where the lines span enough for one."""
    drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in axis.lines])
    drawn = drawn[drawn > 0]
    if len(drawn) == 0 or drawn.max() / drawn.min() < WIDE:
        axis.set_ylim(bottom=0)
        return
    axis.set_yscale("log")
    _plain_numbers(axis.yaxis)


def _plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis, drawn already, with 1, 2, 5, 10, … (or 1, 10, …) instead of powers."""
    from matplotlib.axis import YAxis
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    room = isinstance(axis, YAxis) or (low > 0 and high / low < 300)  # side by side, more would overlap
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if room else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def latency_curves(outcomes: Mapping[str, Outcome]) -> Figure:
    """Share of requests above a TTFT, a TPOT and an end-to-end time, a line a policy."""
    figure, axes = _subplots(1, 3, 13, 3.8)
    looks = style(list(outcomes))
    for name, outcome in outcomes.items():
        found = Metrics.of(outcome)
        for axis, values in zip(axes[0], (found.ttft, found.tpot, found.e2e)):
            _tail(axis, values, name, looks[name]["color"])
    for axis, title in zip(axes[0], ("TTFT", "TPOT", "end to end")):
        _plain_numbers(axis.xaxis)
        axis.set_xlabel(f"{title}, ms")
        axis.set_ylabel("share of requests above")
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure


def _tail(axis: Axes, values: np.ndarray, label: str, colour: str) -> None:
    ordered = np.sort(values)
    above = 1.0 - np.arange(len(ordered)) / len(ordered)
    keep = np.unique(np.linspace(0, len(ordered) - 1, 2000).astype(int))
    axis.plot(ordered[keep], above[keep], label=label, color=colour, linewidth=1.5)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_ylim(1e-3, 1.1)


def gap_histogram(outcomes: Mapping[str, Outcome]) -> Figure:
    """Time between tokens: share of gaps in each bucket, a line a case."""
    figure, axes = _subplots(1, 1, 6.5, 3.6)
    axis = axes[0][0]
    for (name, outcome), colour in zip(outcomes.items(), COLOURS):
        used = np.flatnonzero(outcome.gaps)
        span = np.arange(used.min(), used.max() + 2)
        edges = 1e-3 * 2 ** (span / BUCKETS_PER_DOUBLING)
        share = outcome.gaps[span[:-1]] / outcome.gaps.sum()
        axis.stairs(share, edges, label=name, color=colour, linewidth=1.4)
    axis.set_xscale("log")
    _plain_numbers(axis.xaxis)
    axis.set_yscale("log")
    axis.set_xlabel("time between tokens, ms")
    axis.set_ylabel("share of tokens")
    axis.legend(frameon=False, fontsize=8)
    return figure


def timeline(outcome: Outcome, *, start_s: float = 0.0, end_s: float | None = None) -> Figure:
    """Batch, waiting requests and free KV blocks over time; needs ``simulate(every=…)``."""
    if len(outcome.series) == 0:
        raise ValueError("the outcome has no series: pass every=1 (or more) to simulate")
    time = outcome.series[:, 0] / 1e9
    chosen = (time >= start_s) & (time <= (end_s if end_s is not None else time[-1]))
    series, time = outcome.series[chosen], time[chosen]
    decode = series[:, 1] == 1
    figure, axes = _subplots(3, 1, 9, 5.6)
    column = axes[:, 0]
    column[0].plot(time[decode], series[decode, 2], color=COLOURS[0], linewidth=1)
    column[0].plot(
        time[~decode], series[~decode, 2], ".", color=COLOURS[1], markersize=3, label="prefills packed"
    )
    column[0].set_ylabel("decode rows")
    column[0].legend(frameon=False, fontsize=8)
    column[1].plot(time, series[:, 4], color=COLOURS[3], linewidth=1)
    column[1].set_ylabel("waiting")
    column[2].plot(time, series[:, 5], color=COLOURS[2], linewidth=1)
    column[2].set_ylabel("KV blocks free")
    for axis in column:
        axis.set_ylim(bottom=0)
    column[2].set_xlabel("time, s")
    return figure


def bars(values: Mapping[str, Mapping[str, float]], ylabel: str, *, log: bool = False) -> Figure:
    """Groups of bars: ``values[group][series]``."""
    groups, series = list(values), list(dict.fromkeys(k for row in values.values() for k in row))
    figure, axes = _subplots(1, 1, max(5.0, 1.3 * len(groups) * max(len(series), 2) / 2), 3.6)
    axis = axes[0][0]
    width = 0.8 / len(series)
    for i, name in enumerate(series):
        heights = [values[group].get(name, np.nan) for group in groups]
        axis.bar(
            np.arange(len(groups)) + (i - (len(series) - 1) / 2) * width,
            heights,
            width * 0.92,
            label=name,
            color=COLOURS[i % len(COLOURS)],
        )
    axis.set_xticks(np.arange(len(groups)), groups)
    axis.grid(False, axis="x")
    if log:
        axis.set_yscale("log")
    axis.set_ylabel(ylabel)
    if len(series) > 1:
        axis.legend(frameon=False, fontsize=8)
    return figure
