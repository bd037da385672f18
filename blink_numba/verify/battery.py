"""The whole battery as independent tasks, run on a few processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace

from blink_numba.verify.configurations import CONFIGURATIONS, IN_CI, LARGER, find
from blink_numba.verify.explore import Explorer
from blink_numba.verify.model import Model
from blink_numba.verify.mutants import MUTANTS, Death, run_mutant
from blink_numba.verify.setup import Setup
from blink_numba.verify.story import encode, tell
from blink_numba.verify.walk import random_chooser, walk

CI_WALKS, LONG_WALKS = 40, 1500
CI_DEADLINE_S, LONG_DEADLINE_S = 600.0, 4 * 3600.0


@dataclass(frozen=True)
class Task:
    """One thing to check: ``kind`` is "exhaust", "walks" or "mutant"."""

    kind: str
    name: str
    policy: str = "fcfs"
    amount: float = 0.0


@dataclass
class Result:
    """What came of a task.

    Attributes
    ----------
    ok : bool
    figures : str
        States, executions and such, for people.
    story : list of str
        The counterexample; how to replay it is its last line.
    """

    task: Task
    ok: bool
    figures: str
    seconds: float
    story: list[str]
    death: Death | None = None


def tasks(
    *,
    long: bool = False,
    mutants: bool = False,
    variants: tuple[str, ...] = ("fcfs",),
    only: str | None = None,
) -> list[Task]:
    """The tasks of the CI profile or the long one, for each policy named; or those about one name."""
    found = []
    names = list(CONFIGURATIONS) if long or only else list(IN_CI)
    deadline = LONG_DEADLINE_S if long else CI_DEADLINE_S
    for policy in variants:
        found += [Task("exhaust", name, policy, deadline) for name in names]
        walks = LONG_WALKS if long else CI_WALKS
        found += [Task("walks", name, policy, walks) for name in (*LARGER, *CONFIGURATIONS)]
    if mutants or only:
        found += [Task("mutant", mutant.name) for mutant in MUTANTS]
    return [task for task in found if only in (None, task.name)]


def run_task(task: Task) -> Result:
    """Run one task in this process."""
    began = time.monotonic()
    if task.kind == "mutant":
        return _run_mutant(task)
    setup = find(task.name)
    if task.policy != "fcfs":
        setup = replace(setup, policy=task.policy)
    result = _exhaust(task, setup) if task.kind == "exhaust" else _walks(task, setup)
    result.seconds = time.monotonic() - began
    return result


def _exhaust(task: Task, setup: Setup) -> Result:
    found = Explorer(Model(setup), deadline_s=task.amount).run()
    figures = (
        f"exhausted: {str(found.exhausted).lower()}, {found.states:,} states, "
        f"{found.transitions:,} transitions, "
        f"{found.executions} ends, depth {found.deepest}, {found.cpu_seconds:.1f} s of processor"
    )
    story = []
    if found.violation is not None:
        figures = f"{found.violation}"
        story = [*tell(Model(setup), found.trace), _how_to_replay(setup, found.trace)]
    return Result(task, found.exhausted, figures, 0.0, story)


def _walks(task: Task, setup: Setup) -> Result:
    model, moves = Model(setup), 0
    for seed in range(int(task.amount)):
        outcome = walk(model, random_chooser(seed))
        moves += len(outcome.trace)
        if outcome.violation is not None:
            story = [*tell(Model(setup), outcome.trace), _how_to_replay(setup, outcome.trace)]
            return Result(task, False, f"seed {seed}: {outcome.violation}", 0.0, story)
    return Result(task, True, f"{int(task.amount)} walks, {moves:,} moves", 0.0, [])


def _how_to_replay(setup: Setup, trace: list[tuple[int, int]]) -> str:
    policy = "" if setup.policy == "fcfs" else f" --variant policy={setup.policy}"
    return f"replay: blink-numba verify{policy} --replay {setup.name}:{encode(trace)}"


def _run_mutant(task: Task) -> Result:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == task.name)
    death = run_mutant(mutant)
    by = (
        f"killed by {death.invariant} in {death.setup!r}, {death.walks} walks" if death.invariant else "LIVES"
    )
    if death.invariant and not death.killed:
        by += f", but not by {' or '.join(mutant.killers)}"
    return Result(task, death.killed, f"{by}: {death.detail}", death.seconds, [], death)


def run(chosen: list[Task], *, jobs: int = 2) -> Iterator[Result]:
    """Run tasks on `jobs` processes, as they end."""
    if jobs <= 1 or len(chosen) == 1:
        yield from map(run_task, chosen)
        return
    context = multiprocessing.get_context("spawn")
    # the long ones first, so that no process is left alone with one at the end
    ordered = sorted(chosen, key=lambda task: (task.kind != "exhaust", task.kind != "walks"))
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for future in as_completed([pool.submit(run_task, task) for task in ordered]):
            yield future.result()
