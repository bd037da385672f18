"""``blink-numba engine``: an engine alone, for front ends elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape


def engine(
    model: Annotated[str, typer.Argument(help="A model's name, a GGUF file or a folder.")] = "smollm2",
    transport: Annotated[str, typer.Option(help="verbs (front ends on other hosts) or shm.")] = "verbs",
    host: Annotated[str, typer.Option(help="Address where front ends connect.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port where front ends connect.")] = 7471,
    key: Annotated[
        str | None,
        typer.Option(
            envvar="BLINK_NUMBA_RDMA_KEY", help="Key shared with the front ends, 16 bytes at least."
        ),
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(envvar="BLINK_NUMBA_RDMA_KEY_FILE", help="File with that key, private to its owner."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="RDMA device; the first active one by default.")] = None,
    front_ends: Annotated[int, typer.Option(min=1, help="Front ends that may attach.")] = 1,
    slots: Annotated[int, typer.Option(min=32, help="Slots of the ring.")] = 1024,
    ring: Annotated[str, typer.Option(help="Name of the ring in shared memory.")] = "engine",
    backend: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    max_model_len: Annotated[int | None, typer.Option(min=2, help="Most tokens of a request.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="Most requests in the batch.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the CPU engine.")] = None,
    dummy: Annotated[bool, typer.Option(help="Random weights in the model's shape.")] = False,
) -> None:
    """Run an engine alone; it ends with SIGTERM."""
    from blink_numba.errors import EngineStartError
    from blink_numba.remote import run_engine
    from blink_numba.runtime import EngineConfig
    from rdma.transport import TransportError

    console = Console(stderr=True, highlight=False)
    try:
        config = EngineConfig(
            model=model, backend=backend, ring_name=ring, slots=slots, front_ends=front_ends,  # type: ignore[arg-type]
            max_seats=max_num_seqs, max_model_len=max_model_len, threads=threads, dummy=dummy,
        )  # fmt: skip
        status = run_engine(
            config, transport=transport, host=host, port=port, key=key, key_file=key_file,
            device=device,
            on_progress=lambda line: console.print(f"[dim]{line}"), on_ready=console.print,
        )  # fmt: skip
    except (EngineStartError, TransportError, ValueError) as error:
        console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from None
    raise typer.Exit(status)
