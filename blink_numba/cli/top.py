"""``blink-numba top``: watch a running scheduler."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer


def top(
    ring: Annotated[str, typer.Option(help="Name of the engine's ring.")] = "default",
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.05)] = 0.5,
    once: Annotated[bool, typer.Option(help="Print one picture and leave.")] = False,
) -> None:
    """Slots by state, seats, KV blocks, rates, TTFT and TPOT; it only reads, and costs the engine nothing."""
    from blink_numba.top import watch
    from ring.memory import RingError

    try:
        with contextlib.suppress(KeyboardInterrupt):
            watch(ring, interval_s=interval, once=once)
    except RingError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
