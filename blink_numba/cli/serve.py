"""``blink-numba serve``: every field of `ServeConfig` is a flag."""

from __future__ import annotations

import inspect
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic.fields import FieldInfo
from rich.console import Console

from blink_numba.config import ConfigError, ServeConfig, load_config
from blink_numba.frontend.logs import setup_logging


def serve(config: Path | None = None, **flags: Any) -> None:
    """Serve a model with OpenAI's API."""
    from blink_numba.serving import serve as run

    console = Console(stderr=True)
    try:
        settings = load_config(flags, config)
    except ConfigError as error:
        console.print(f"[red]error:[/] {error}", highlight=False)
        raise typer.Exit(2) from None
    setup_logging(settings.log_level)

    def ready(url: str) -> None:
        console.print(f"serving [bold]{settings.model}[/] on [bold]{url}/v1[/]", highlight=False)

    raise typer.Exit(run(settings, lambda line: console.print(f"[dim]{line}", highlight=False), ready))


def _plain_type(annotation: Any) -> Any:
    """Type of an option: None means "not given", whatever the field's default is."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = next(part for part in typing.get_args(annotation) if part is not type(None))
    if typing.get_origin(annotation) is Literal:
        return str
    return annotation


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    """A flag of a setting, None by default so that lower sources are not hidden."""
    kind = _plain_type(field.annotation)
    text = field.description or ""
    if typing.get_origin(field.annotation) is Literal:
        text += f" One of {', '.join(typing.get_args(field.annotation))}."
    if field.default not in (None, False, True) and field.default_factory is None:
        text += f" Default {field.default}."
    flag = f"--{name.replace('_', '-')}"
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    option = typer.Option(declaration, help=text, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _signature() -> inspect.Signature:
    model = inspect.Parameter(
        "model", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None,
        annotation=Annotated[
            str | None, typer.Argument(help="A model's name, a GGUF file or a folder. Default smollm2.")
        ],
    )  # fmt: skip
    config = inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default=None,
        annotation=Annotated[
            Path | None, typer.Option("--config", help="YAML file with flag names as keys.")
        ],
    )  # fmt: skip
    options = [_option(name, field) for name, field in ServeConfig.model_fields.items() if name != "model"]
    return inspect.Signature([model, config, *options])


serve.__signature__ = _signature()  # type: ignore[attr-defined]
serve.__annotations__ = {name: p.annotation for name, p in _signature().parameters.items()}
