"""Measurements, each one a module with ``run(**options) -> list[Row]``.

All speak one language (`report.Row`, `report.Report`): a table for people, JSON for
machines. `blink-numba bench NAME` runs one; results that the documentation quotes lie in
``results/``.
"""

from blink_numba.bench.report import Report, Row, environment, spread

__all__ = ["Report", "Row", "environment", "spread"]
