"""Which ring a command means: the one that is named, or the only one there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

Ring = Annotated[
    str | None, typer.Option(help="Name of the engine's ring; without it, the only engine that runs here.")
]


def running_rings() -> list[str]:
    """Names of the rings whose engine runs, of this user."""
    from ring import memory as ring_memory
    from ring.memory import RingError, RingMemory

    found = []
    for path in sorted(ring_memory.SHM.glob("blink-numba-*")):
        name = path.name.removeprefix("blink-numba-")
        try:
            with RingMemory.attach(name) as memory:
                if memory.owner_alive():
                    found.append(name)
        except (RingError, OSError, ValueError):
            continue
    return found


def the_ring(name: str | None) -> str:
    """The ring that is meant.

    Raises
    ------
    ring.memory.RingError
        None is named, and there is none, or more than one.
    """
    from ring.memory import RingError

    if name is not None:
        return name
    found = running_rings()
    if len(found) == 1:
        return found[0]
    if found:
        raise RingError(f"several engines run here: choose one with --ring: {', '.join(found)}")
    raise RingError("no engine runs here: start one, for example with blink-numba serve")


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """What a user did wrong, or what is missing, as a line on standard error and status 1."""
    from ring.memory import RingError
    from scheduler.simulator import SimulationError

    try:
        yield
    except (ValueError, RingError, SimulationError, RuntimeError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
