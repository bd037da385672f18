"""``blink-numba frontend``: a front end alone, for an engine elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape


def frontend(
    connect: Annotated[str, typer.Option(help="HOST:PORT of `blink-numba engine`.")],
    model: Annotated[
        str, typer.Option(help="Model, for its tokenizer; asked of the engine by default.")
    ] = "",
    front_end: Annotated[int, typer.Option(min=0, help="Which of the ring's places to take.")] = 0,
    key: Annotated[
        str | None,
        typer.Option(envvar="BLINK_NUMBA_RDMA_KEY", help="Key shared with the engine."),
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(envvar="BLINK_NUMBA_RDMA_KEY_FILE", help="File with that key, private to its owner."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="RDMA device; the first active one by default.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Names that requests may ask for.")
    ] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="Keys that are let in; none: everybody.")] = None,
    admin_api_key: Annotated[
        str | None,
        typer.Option(
            envvar="BLINK_NUMBA_ADMIN_API_KEY",
            help="Key of /admin/policy, which says here that policies are swapped on the engine's host.",
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve OpenAI's API here for an engine on another host, over RDMA."""
    from blink_numba.frontend.logs import setup_logging
    from blink_numba.frontend.settings import FrontEndSettings
    from blink_numba.remote import VerbsConnector, parse_address, run_front_end, shared_key
    from rdma.transport import TransportError

    console = Console(stderr=True, highlight=False)
    setup_logging(log_level)
    try:
        connector = VerbsConnector(
            *parse_address(connect), front_end, key=shared_key(key, key_file), device=device
        )
        settings = FrontEndSettings(
            model=model, served_names=tuple(served_model_name or ((model,) if model else ())), ring="",
            front_end=front_end, host=host, port=port, api_keys=tuple(api_key or ()),
            admin_api_key=admin_api_key, log_level=log_level,
        )  # fmt: skip
        status = run_front_end(
            settings, connector, lambda number: console.print(f"serving on http://{host}:{number}/v1")
        )
    except (TransportError, ValueError) as error:
        console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from None
    raise typer.Exit(status)
