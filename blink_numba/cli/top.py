"""``blink-numba top``: watch a running scheduler."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from blink_numba.cli.rings import Ring, errors_in_one_line, the_ring


def top(
    ring: Ring = None,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.05)] = 0.5,
    once: Annotated[bool, typer.Option(help="Print one picture and leave.")] = False,
) -> None:
    """Slots by state, seats, KV blocks, rates, TTFT and TPOT; it only reads, and costs the engine nothing."""
    from blink_numba.top import watch

    with errors_in_one_line(), contextlib.suppress(KeyboardInterrupt):
        watch(the_ring(ring), interval_s=interval, once=once)
