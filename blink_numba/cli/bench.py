"""``blink-numba bench NAME``: a bench's keyword arguments are its options."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from blink_numba.bench.report import Report, Row

logger = logging.getLogger("blink_numba.bench")

HOME = Path(__file__).parent.parent / "bench"


def names() -> list[str]:
    """Benches there are: the modules of `blink_numba.bench` that define `run`."""
    return sorted(path.stem for path in HOME.glob("*.py") if "\ndef run(" in path.read_text())


def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Which one; without a name, they are listed.")] = "",
) -> None:
    """Measure something; a table, or JSON with --json."""
    if name not in names():
        _list_them(unknown=name)
        raise typer.Exit(2 if name not in ("", "--help") else 0)
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command()(command(name, import_module(f"blink_numba.bench.{name}").run))
    single(context.args, prog_name=f"blink-numba bench {name}")


# What follows the name, --help included, is the bench's own.
bench_settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _list_them(unknown: str) -> None:
    console = Console(stderr=bool(unknown))
    if unknown and unknown != "--help":
        console.print(f"[red]error:[/] there is no bench {unknown!r}")
    table = Table("bench", "what it measures", box=None)
    for name in names():
        table.add_row(name, _first_line((HOME / f"{name}.py").read_text()))
    console.print(table)


def _first_line(source: str) -> str:
    """Of a module's docstring, without importing the module."""
    return source.removeprefix('"""').partition("\n")[0].rstrip('"')


def command(name: str, run: Callable[..., list[Row]]) -> Callable[..., None]:
    """A command line of a bench: the options of its `run`, and ``--json``."""
    hints = get_type_hints(run, include_extras=True)
    options = []
    for parameter in inspect.signature(run).parameters.values():
        default = parameter.default if parameter.default is not inspect.Parameter.empty else ...
        hint = hints.get(parameter.name, str)
        if get_origin(hint) is not Annotated:  # else the bench says itself what its option is
            flag = parameter.name.replace("_", "-")
            default = typer.Option(default, f"--{flag}/--no-{flag}" if hint is bool else f"--{flag}")
        kind = inspect.Parameter.KEYWORD_ONLY
        options.append(inspect.Parameter(parameter.name, kind, default=default, annotation=hint))
    json = inspect.Parameter(
        "json", inspect.Parameter.KEYWORD_ONLY, default=None,
        annotation=Annotated[str | None, typer.Option("--json", help="Write JSON to a file, or to - .")],
    )  # fmt: skip

    def measure(json: str | None = None, **arguments: Any) -> None:
        try:
            report = Report(name, run(**arguments))
        except (ValueError, RuntimeError, OSError) as error:  # no GPU, a wrong option, an engine that fails
            logger.debug("bench %s", name, exc_info=True)
            Console(stderr=True).print(f"[red]error:[/] bench {name}: {escape(str(error))}", highlight=False)
            raise typer.Exit(1) from None
        if json != "-":
            report.print()
        if json is not None:
            report.write(json)

    measure.__signature__ = inspect.Signature([json, *options])  # type: ignore[attr-defined]
    measure.__annotations__ = {p.name: p.annotation for p in (json, *options)}
    measure.__doc__ = inspect.getdoc(run)
    return measure
