"""``blink-numba trace``: the scheduler's recorded decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def trace(
    ring: Annotated[str, typer.Option(help="Name of the engine's ring.")] = "default",
    perfetto: Annotated[
        Path | None, typer.Option(help="Write a timeline that https://ui.perfetto.dev opens.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write one line a decision.")] = None,
    last: Annotated[int, typer.Option(help="Without a file: how many decisions to show.", min=1)] = 40,
) -> None:
    """Show or export what the flight recorder holds: the last decisions, stamped by the scheduler's clock."""
    from blink_numba.trace import arguments_of, frame, save_perfetto
    from ring.memory import RingError, RingMemory
    from ring.recorder import entries

    try:
        with RingMemory.attach(ring) as memory:
            found = entries(memory.view.flight)
        if perfetto is not None:
            save_perfetto(found, perfetto)
            typer.echo(f"{len(found)} decisions written to {perfetto}")
        if csv is not None:
            frame(found).to_csv(csv, index=False)
            typer.echo(f"{len(found)} decisions written to {csv}")
    except (RingError, RuntimeError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    if perfetto is None and csv is None:
        for entry in found[-last:]:
            said = "  ".join(f"{name}={value}" for name, value in arguments_of(entry).items())
            typer.echo(f"{(entry.time_ns - found[0].time_ns) / 1e6:14.3f} ms  {entry.event.name:8s}  {said}")
