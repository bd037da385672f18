"""Pictures of committed results: ``python -m blink_numba.bench.plots RESULT.json … --out FOLDER``.

One picture a bench, drawn from the JSON alone. Needs matplotlib (the ``notebook`` extra).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blink_numba.bench.report import Report, Row, load

_DARK, _LIGHT, _TARGET = "#1b4965", "#9ec5d6", "#c1121f"


def draw(report: Report, destination: Path) -> None:
    """Draw a report as an SVG file.

    Parameters
    ----------
    report : Report
    destination : Path
        Overwritten.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = panels_of(report)
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.2 * len(panels), 3.6), squeeze=False)
    for axis, (title, unit, rows) in zip(axes[0], panels):
        _bars(axis, title, unit, rows)
    where = report.env.get("gpu") or report.env.get("machine", "")
    figure.suptitle(f"{report.bench} · {where} · {report.env.get('date', '')[:10]}", fontsize=9)
    figure.tight_layout()
    figure.savefig(destination, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def panels_of(report: Report) -> list[tuple[str, str, list[Row]]]:
    """What to draw: (title, unit, rows), rows of one unit and kind side by side.

    Rows are grouped by the last part of their case, so ``faf/idle/step_us`` stands beside
    ``host/idle/step_us``; a group of one row joins others of its unit.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows:
        if row.unit != "count":
            groups.setdefault((row.case.rpartition("/")[2], row.unit), []).append(row)
    panels, single = [], {}
    for (title, unit), rows in groups.items():
        if len(rows) > 1:
            panels.append((title, unit, rows))
        else:
            single.setdefault(unit, []).extend(rows)
    panels += [(unit, unit, rows) for unit, rows in single.items()]
    if not panels:
        raise ValueError(f"the report of bench {report.bench} has nothing to draw")
    return panels


def _bars(axis: Any, title: str, unit: str, rows: Sequence[Row]) -> None:
    """Bars of values, whiskers up to P99 where there is one, and targets as marks."""
    places = range(len(rows))
    values = [row.value for row in rows]
    colours = [_LIGHT if "/idle/" in row.case else _DARK for row in rows]
    axis.barh(places, values, color=colours)
    for place, row in zip(places, rows):
        if "p99" in row.extra:
            axis.plot([row.value, row.extra["p99"]], [place, place], color="black", linewidth=1)
        if row.target is not None:
            axis.plot([row.target, row.target], [place - 0.45, place + 0.45], color=_TARGET, linewidth=2)
    if max(values) > 50 * max(min(values), 1e-9):
        axis.set_xscale("log")
    labels = [row.case.removesuffix("/" + title) for row in rows]
    axis.set_yticks(list(places), labels, fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel(unit, fontsize=8)
    axis.set_title(title, fontsize=9)


def main() -> None:
    """Draw every result that is named."""
    parser = argparse.ArgumentParser(prog="python -m blink_numba.bench.plots")
    parser.add_argument("results", nargs="+", type=Path, help="JSON of a bench")
    parser.add_argument("--out", type=Path, help="folder of the pictures; beside the results by default")
    options = parser.parse_args()
    for path in options.results:
        folder = options.out or path.parent
        folder.mkdir(parents=True, exist_ok=True)
        destination = folder / f"{path.stem}.svg"
        draw(load(path), destination)
        print(destination)


if __name__ == "__main__":
    main()
