"""The language of all benches: rows with a stable name, a value, a unit and perhaps a target.

``value`` is the median of the repeats; their spread stands in further fields. A ratio is a
row of its own, both sides of it measured in one run.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
_VERSIONS_OF = ("blink-numba", "numba", "llvmlite", "numpy", "numba-cuda", "cuda-core", "nvmath-python")


class Row:
    """One measured figure.

    Parameters
    ----------
    case : str
        Stable name, e.g. ``smollm2/b1/tok_s``.
    value : float
        Median of the repeats, in `unit`.
    unit : str
        ``tok/s``, ``ms``, ``us``, ``GB``, ``ratio``, ``count``, ….
    target : float, optional
        What is asked for.
    better : {"higher", "lower"}
        Which side of `target` is good.
    **extra
        Further fields of the JSON (spread, sizes, a note).
    """

    __slots__ = ("better", "case", "extra", "target", "unit", "value")

    def __init__(self, case: str, value: float, unit: str, target: float | None = None,
                 better: Literal["higher", "lower"] = "higher", **extra: Any) -> None:  # fmt: skip
        if better not in ("higher", "lower"):
            raise ValueError(f"better={better!r} must be 'higher' or 'lower'")
        clash = {"case", "value", "unit", "target", "better", "ok"} & extra.keys()
        if clash:
            raise ValueError(f"extra fields {sorted(clash)} are fields of a row")
        self.case, self.value, self.unit = case, float(value), unit
        self.target, self.better, self.extra = target, better, extra

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.target is None:
            return None
        return self.value >= self.target if self.better == "higher" else self.value <= self.target

    def as_dict(self) -> dict[str, Any]:
        """The row as it stands in the JSON."""
        return {
            "case": self.case, "value": self.value, "unit": self.unit, "target": self.target,
            "better": self.better, "ok": self.ok, **self.extra,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"Row({self.case!r}, {self.value:.6g}, {self.unit!r}, target={self.target}, ok={self.ok})"


def spread(values: Sequence[float]) -> dict[str, float]:
    """Extra fields that tell how far repeats lie apart: ``min``, ``max``, ``repeats``."""
    return {"min": float(min(values)), "max": float(max(values)), "repeats": len(values)}


def median_row(case: str, values: Sequence[float], unit: str, target: float | None = None,
               better: Literal["higher", "lower"] = "higher", **extra: Any) -> Row:  # fmt: skip
    """A row of the median of `values`, with their spread."""
    return Row(case, statistics.median(values), unit, target, better, **spread(values), **extra)


def environment() -> dict[str, Any]:
    """What a figure depends on: versions, machine, date."""
    versions = {}
    for name in _VERSIONS_OF:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        **_gpu(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": versions,
        "machine": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
    }


def _gpu() -> dict[str, str]:
    """Name and driver of the first GPU, without starting CUDA; nothing where there is none."""
    try:
        import pynvml  # pyright: ignore[reportMissingImports]

        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        return {"gpu": str(name), "driver": str(pynvml.nvmlSystemGetDriverVersion())}
    except Exception:  # not installed, no driver, no GPU: a figure of the CPU alone
        return {}


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


@dataclass
class Report:
    """The rows of one run of a bench, with the environment they were measured in."""

    bench: str
    rows: list[Row]
    env: dict[str, Any] = field(default_factory=environment)

    def as_dict(self) -> dict[str, Any]:
        return {"bench": self.bench, "env": self.env, "rows": [row.as_dict() for row in self.rows]}

    def write(self, destination: str) -> None:
        """Write the JSON to a file, or to standard output for ``-``."""
        text = json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n"
        if destination == "-":
            sys.stdout.write(text)
        else:
            Path(destination).write_text(text)

    def print(self, console: Console | None = None) -> None:
        """Show the rows as a table."""
        table = Table(title=f"bench {self.bench}", title_justify="left")
        table.add_column("case")
        table.add_column("value", justify="right")
        table.add_column("unit")
        table.add_column("target", justify="right")
        table.add_column("")
        for row in self.rows:
            sign = "≥" if row.better == "higher" else "≤"
            target = "" if row.target is None else f"{sign} {row.target:g}"
            mark = {True: "[green]met", False: "[red]missed", None: ""}[row.ok]
            table.add_row(row.case, format_value(row.value), row.unit, target, mark)
        (console or Console()).print(table)


def format_value(value: float) -> str:
    """Four significant digits, with thousands separated."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def load(path: Path | str) -> Report:
    """Read a report back from its JSON."""
    raw = json.loads(Path(path).read_text())
    rows = []
    for item in raw["rows"]:
        extra = {k: v for k, v in item.items()
                 if k not in ("case", "value", "unit", "target", "better", "ok")}  # fmt: skip
        rows.append(Row(item["case"], item["value"], item["unit"], item["target"], item["better"], **extra))
    return Report(raw["bench"], rows, raw["env"])


def markdown(report: Report) -> str:
    """The rows as a Markdown table, for pages generated from committed results."""
    lines = ["| case | value | unit | target | met |", "|---|---:|---|---:|---|"]
    for row in report.rows:
        sign = "≥" if row.better == "higher" else "≤"
        target = "" if row.target is None else f"{sign} {row.target:g}"
        mark = {True: "yes", False: "**no**", None: ""}[row.ok]
        lines.append(f"| `{row.case}` | {format_value(row.value)} | {row.unit} | {target} | {mark} |")
    return "\n".join(lines) + "\n"
