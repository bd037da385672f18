"""``blink-numba verify``: the battery for the slot protocol and for variants of the scheduler."""

from __future__ import annotations

import time
from typing import Annotated

import typer

STORY_LINES = 100
NEEDS = "the model checker needs greenlet (and hypothesis for its machine): pip install 'blink-numba[test]'"


def verify(
    variant: Annotated[
        list[str] | None,
        typer.Option(
            help="What to check: policy=NAME, shipped or your own file.py:attribute; may be given more "
            "than once. Default: policy=fcfs."
        ),
    ] = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Kill planted bugs too; print the kill table.")
    ] = False,
    long: Annotated[
        bool, typer.Option("--long", help="Every configuration, many walks, 20 million transitions.")
    ] = False,
    only: Annotated[str | None, typer.Option(help="Only this configuration or mutant.")] = None,
    replay: Annotated[
        str | None, typer.Option(help="CONFIGURATION:TRACE of a counterexample: tell its story.")
    ] = None,
    threads: Annotated[bool, typer.Option(help="Also real threads and processes on one ring.")] = True,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
) -> None:
    """Check the slot protocol: exhaustive search, random walks, mutants, real threads."""
    try:
        import greenlet  # noqa: F401
    except ImportError:
        raise typer.BadParameter(NEEDS) from None
    policies = _policies(variant)
    if replay is not None:
        _tell(replay, policies[0])
        return
    failed = _battery(policies, mutants=mutants, long=long, only=only, jobs=jobs)
    if threads and only is None:
        failed += _threads(long)
    if failed:
        raise typer.Exit(1)


def _policies(variant: list[str] | None) -> tuple[str, ...]:
    from scheduler.policies import find
    from scheduler.policy import PolicyError

    names = []
    for text in variant or ["policy=fcfs"]:
        key, _, value = text.partition("=")
        if key != "policy":
            raise typer.BadParameter(f"--variant {text!r}: expected policy=NAME, such as policy=srpt")
        try:
            find(value)
        except PolicyError as error:
            raise typer.BadParameter(f"--variant {text!r}: {error}") from None
        names.append(value)
    return tuple(names)


def _tell(replay: str, policy: str) -> None:
    from dataclasses import replace

    from blink_numba.verify.configurations import find
    from blink_numba.verify.model import Model
    from blink_numba.verify.story import decode, tell

    name, _, text = replay.partition(":")
    try:
        setup, trace = find(name), decode(text)
    except (KeyError, ValueError) as error:
        raise typer.BadParameter(f"--replay: {error.args[0]}") from None
    setup = replace(setup, policy=policy) if policy != "fcfs" else setup
    try:
        lines = tell(Model(setup), trace)
    except ValueError as error:
        raise typer.BadParameter(f"--replay: {error}") from None
    typer.echo(f"{setup.name}: {setup.sentence}")
    for line in lines:
        typer.echo(line)


def _battery(policies: tuple[str, ...], *, mutants: bool, long: bool, only: str | None, jobs: int) -> int:
    from rich.console import Console

    from blink_numba.verify.battery import run, tasks

    chosen = tasks(long=long, mutants=mutants, variants=policies, only=only)
    if not chosen:
        raise typer.BadParameter(f"--only {only!r}: {_unknown(only or '')}")
    console, began, failed, killed = Console(), time.monotonic(), 0, 0
    for result in run(chosen, jobs=jobs):
        failed += not result.ok
        killed += result.ok and result.task.kind == "mutant"
        mark = "[green]ok[/]  " if result.ok else "[red]FAIL[/]"
        policy = "" if result.task.policy == "fcfs" else f" ({result.task.policy})"
        console.print(
            f"{mark} {result.task.kind:8} {result.task.name}{policy}  [dim]{result.seconds:.1f} s[/]",
            end="  ",
        )
        console.print(result.figures, markup=False, highlight=False, soft_wrap=True)
        for line in _last_lines(result.story):
            console.print("     ", line, markup=False, highlight=False, soft_wrap=True)
    count = sum(task.kind == "mutant" for task in chosen)
    if count:
        console.print(f"{killed} of {count} mutants killed")
    console.print(f"{len(chosen)} tasks, {failed} failed, {time.monotonic() - began:.0f} s")
    return failed


def _last_lines(story: list[str]) -> list[str]:
    """What is read first of a story; a random walk's is long."""
    if len(story) <= STORY_LINES:
        return story
    left_out = len(story) - STORY_LINES
    return [f"… {left_out} lines before, told by the last line's --replay", *story[-STORY_LINES:]]


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    from blink_numba.verify.configurations import CONFIGURATIONS, LARGER
    from blink_numba.verify.mutants import MUTANTS

    known = [*CONFIGURATIONS, *LARGER]
    near = get_close_matches(name, [*known, *(mutant.name for mutant in MUTANTS)])
    if near:
        return f"neither a configuration nor a mutant; nearest: {', '.join(near)}"
    return f"neither a mutant (--mutants lists them) nor a configuration: {', '.join(known)}"


def _threads(long: bool) -> int:
    from blink_numba.verify.threads import LONG_TRANSITIONS, TRANSITIONS, hammer

    transitions = LONG_TRANSITIONS if long else TRANSITIONS
    typer.echo(f"threads and processes on one ring, {transitions:,} transitions …")
    failed = 0
    for pipelined in (False, True):
        report = hammer(transitions, pipelined=pipelined)
        typer.echo(report.summary() + (" (decode steps launched ahead)" if pipelined else ""))
        failed += not report.ok
    return failed
