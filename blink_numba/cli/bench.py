"""``blink-numba bench NAME``: a bench's keyword arguments are its options."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from blink_numba.bench.report import Report, Row

bench = typer.Typer(no_args_is_help=True, help="Measure something.")

# Modules of `blink_numba.bench` that are no benches.
_HELPERS = frozenset({"report"})


def names() -> list[str]:
    """Benches there are: the modules of `blink_numba.bench` that define `run`."""
    import blink_numba.bench as package

    found = []
    for module in pkgutil.iter_modules(package.__path__):
        if module.name in _HELPERS or module.name.startswith("_") or module.ispkg:
            continue
        spec = module.module_finder.find_spec(module.name, None)  # type: ignore[call-arg]
        source = spec.loader.get_source(spec.name) if spec and spec.loader else None  # type: ignore[union-attr]
        if source and "\ndef run(" in source:
            found.append(module.name)
    return sorted(found)


def command(name: str, run: Callable[..., list[Row]]) -> Callable[..., None]:
    """A command line of a bench: the options of its `run`, and ``--json``."""
    hints = get_type_hints(run, include_extras=True)
    options = []
    for parameter in inspect.signature(run).parameters.values():
        default = parameter.default if parameter.default is not inspect.Parameter.empty else ...
        hint = hints.get(parameter.name, str)
        if get_origin(hint) is not Annotated:  # else the bench says itself what its option is
            default = typer.Option(default, f"--{parameter.name.replace('_', '-')}")
        kind = inspect.Parameter.KEYWORD_ONLY
        options.append(inspect.Parameter(parameter.name, kind, default=default, annotation=hint))
    json = inspect.Parameter(
        "json", inspect.Parameter.KEYWORD_ONLY, default=None,
        annotation=Annotated[str | None, typer.Option("--json", help="Write JSON to a file, or to - .")],
    )  # fmt: skip

    def measure(json: str | None = None, **arguments: Any) -> None:
        report = Report(name, run(**arguments))
        if json != "-":
            report.print()
        if json is not None:
            report.write(json)

    measure.__signature__ = inspect.Signature([json, *options])  # type: ignore[attr-defined]
    measure.__annotations__ = {p.name: p.annotation for p in (json, *options)}
    measure.__doc__ = inspect.getdoc(run)
    return measure


def _lazily(name: str) -> None:
    """Add a bench; it is imported when the command line is built for it."""
    run = import_module(f"blink_numba.bench.{name}").run
    bench.command(name, help=(inspect.getdoc(run) or "").partition("\n\n")[0])(command(name, run))


for _name in names():
    _lazily(_name)
