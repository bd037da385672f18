"""``blink-numba trace``: the scheduler's recorded decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blink_numba.cli.rings import Ring, errors_in_one_line, the_ring


def trace(
    ring: Ring = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write a timeline that https://ui.perfetto.dev opens.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write one line a decision.")] = None,
    last: Annotated[int, typer.Option(help="Without a file: how many decisions to show.", min=1)] = 40,
) -> None:
    """Show or export what the flight recorder holds: the last decisions, stamped by the scheduler's clock."""
    from blink_numba.trace import arguments_of, frame, save_perfetto
    from ring.memory import RingMemory
    from ring.recorder import entries

    with errors_in_one_line():
        with RingMemory.attach(the_ring(ring)) as memory:
            found = entries(memory.view.flight)
        if perfetto is not None:
            save_perfetto(found, perfetto)
            typer.echo(f"{len(found)} decisions written to {perfetto}")
        if csv is not None:
            frame(found).to_csv(csv, index=False)
            typer.echo(f"{len(found)} decisions written to {csv}")
    if perfetto is None and csv is None:
        if not found:
            typer.echo("the flight recorder is empty: the scheduler has decided nothing yet")
        for entry in found[-last:]:
            said = "  ".join(f"{name}={value}" for name, value in arguments_of(entry).items())
            typer.echo(f"{(entry.time_ns - found[0].time_ns) / 1e6:14.3f} ms  {entry.event.name:8s}  {said}")
