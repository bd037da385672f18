"""The program and its commands.

A command is a module of this package: a function (its parameters are its options, as Typer
takes them, and ``<name>_settings`` its context settings) or a `typer.Typer` with several. Its
name goes into `COMMANDS`; its module imports nothing heavy at the top, since all of them are
imported to show the help.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from blink_numba import __version__

# name: (module:attribute, help)
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("blink_numba.cli.serve:serve", "Serve a model with OpenAI's API."),
    "generate": ("blink_numba.cli.generate:generate", "Answer one prompt, here and now."),
    "bench": ("blink_numba.cli.bench:bench", "Measure something; a table, or JSON with --json."),
    "models": ("blink_numba.cli.models:models", "List the models that have names."),
    "doctor": ("blink_numba.cli.doctor:doctor", "Look at this machine and say what would not work."),
    "verify": ("blink_numba.verify.cli:verify", "Check the slot protocol exhaustively."),
    "trace": ("blink_numba.cli.trace:trace", "Show the scheduler's recorded decisions."),
    "top": ("blink_numba.cli.top:top", "Watch a running scheduler."),
    "policy": ("blink_numba.cli.policy:policy", "List, check, simulate and swap scheduling policies."),
    "engine": ("blink_numba.cli.engine:engine", "Run an engine alone, for front ends elsewhere."),
    "frontend": ("blink_numba.cli.frontend:frontend", "Run a front end alone, for an engine elsewhere."),
}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="LLM serving whose scheduler lives on the GPU.",
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"blink-numba {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """LLM serving whose scheduler lives on the GPU."""


def _register(name: str, target: str, text: str) -> None:
    module, _, attribute = target.partition(":")
    if find_spec(module) is None:
        return
    found = import_module(module)
    command = getattr(found, attribute)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, help=text)
    else:
        settings = getattr(found, f"{attribute}_settings", None)
        app.command(name, help=text, context_settings=settings)(command)


for _name, (_target, _text) in COMMANDS.items():
    _register(_name, _target, _text)


def main() -> None:
    """Run the command line."""
    app()
