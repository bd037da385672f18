"""``blink-numba policy``: list, check, simulate and swap scheduling policies."""

from __future__ import annotations

from typing import Annotated

import typer

from blink_numba.cli.rings import Ring, errors_in_one_line, the_ring

policy = typer.Typer(no_args_is_help=True, help="List, check, simulate and swap scheduling policies.")

Name = Annotated[str, typer.Argument(help="A shipped policy, module:attribute or file.py:attribute.")]


@policy.command("list")
def list_policies() -> None:
    """The policies that ship, with their parameters."""
    import importlib

    from scheduler.policies import SHIPPED, find

    for name, module in SHIPPED.items():
        doc = (importlib.import_module(f"scheduler.policies.{module}").__doc__ or "").splitlines()[0]
        typer.echo(f"{name:14s} {doc}")
        for parameter, value in find(name).parameters.items():
            typer.echo(f"{'':14s}   {parameter} = {value}")


@policy.command()
def show(ring: Ring = None) -> None:
    """The policy that a running engine follows."""
    from ring.memory import RingMemory
    from scheduler.policy_desk import current

    with errors_in_one_line(), RingMemory.attach(the_ring(ring)) as memory:
        typer.echo(current(memory.view))


@policy.command("set")
def set_policy(
    name: Name,
    ring: Ring = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the swap.", min=0.0)] = 60.0,
) -> None:
    """Swap the policy of a running engine; no request is lost by it.

    One of your own is tried out in simulation before the engine is asked.
    """
    from blink_numba.policies import load_policy
    from ring.memory import RingMemory
    from scheduler.policy import PolicyNotFound
    from scheduler.policy_desk import PolicyRefused, ask_for

    with errors_in_one_line(), RingMemory.attach(the_ring(ring)) as memory:
        not_here = None
        try:
            load_policy(name)
        except PolicyNotFound as error:  # the engine may know it: from its start, or seen from its folder
            not_here = error
        with memory.exclusively(timeout):
            try:
                seconds = ask_for(memory.view, name, deadline_s=timeout)
            except PolicyRefused as refused:
                reason = f"{refused} (from here: {not_here})" if not_here else str(refused)
                raise PolicyRefused(reason) from None
        typer.echo(f"{name} is in force after {seconds * 1e3:.1f} ms")


@policy.command()
def check(name: Name) -> None:
    """Compile a policy, and flood it in simulation to see whether it starves anybody."""
    from blink_numba.lab.check import check as check_policy
    from scheduler.policies import find

    with errors_in_one_line():
        found = check_policy(find(name))
        bound = "it promises nothing" if found.bound is None else f"its bound is {found.bound:g}"
        typer.echo(
            f"{name}: the longest wait for a first token is {found.longest_wait_s:.1f} s, "
            f"{found.ratio:.1f} times first come's {found.fcfs_wait_s:.1f} s ({bound}); "
            f"{found.preemptions} preemptions"
        )


@policy.command()
def compare(
    names: Annotated[list[str], typer.Argument(help="Policies.")],
    rate: Annotated[float, typer.Option(help="Requests a second (Poisson).")] = 4.0,
    requests: Annotated[int, typer.Option(help="How many.", min=1)] = 2000,
    seats: Annotated[int, typer.Option(help="Seats of the engine.", min=1, max=4096)] = 16,
    table: Annotated[
        str, typer.Option(help="Step times: a shipped table or a JSON file.")
    ] = "h200-llama3-8b",
    seed: Annotated[int, typer.Option(help="Of arrivals and lengths.", min=0)] = 0,
) -> None:
    """Simulate policies side by side on lengths like ShareGPT's."""
    from rich.console import Console
    from rich.table import Table

    from blink_numba import lab

    with errors_in_one_line():
        times = lab.table(table)
        rows = lab.sweep(
            [lab.named_policy(name) for name in names], [rate],
            lambda load, number: lab.poisson(load, requests, seed=number, tenants=4, priorities=3),
            table=times, spec=times.engine(seats=seats), seeds=[seed],
        )  # fmt: skip
    title = f"{requests} requests at {rate:g}/s, {seats} seats, {table}; times in ms"
    shown = Table(title=title, title_justify="left", box=None)
    columns = {"policy": "policy", "ttft_p50_ms": "TTFT p50", "ttft_p99_ms": "TTFT p99",
               "tpot_p50_ms": "TPOT p50", "tpot_p99_ms": "TPOT p99", "e2e_mean_ms": "mean e2e",
               "goodput": "good /s", "fairness": "fair", "preemptions": "pre- empted"}  # fmt: skip
    for heading in columns.values():
        shown.add_column(heading, justify="left" if heading == "policy" else "right", overflow="fold")
    for row in rows:
        shown.add_row(*(_figure(row[key]) for key in columns))
    Console().print(shown)


def _figure(value: float | int | str) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
