"""``blink-numba doctor``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

_MARKS = {"ok": "[green]ok", "warning": "[yellow]warning", "problem": "[red]problem"}


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Findings as JSON.")] = False,
) -> None:
    """Look at this machine and say what would not work. Exit status 1 if something would not."""
    from blink_numba.doctor import examine

    findings = examine()
    if json:
        Console().print_json(data=[finding.as_dict() for finding in findings])
    else:
        table = Table("", "what", "found", box=None)
        table.add_column("remedy", overflow="fold")  # paths are to be copied
        for finding in findings:
            table.add_row(_MARKS[finding.verdict], finding.what, finding.found, finding.remedy)
        Console().print(table)
    raise typer.Exit(int(any(finding.verdict == "problem" for finding in findings)))
