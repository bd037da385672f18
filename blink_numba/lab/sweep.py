"""Many simulations: policies × loads × seeds, on all cores, resumable.

The simulator holds no interpreter lock, so threads are enough on one machine: policies from a
notebook cell need no pickling. With the ``ray`` extra the same tasks run on a cluster.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from blink_numba.lab.metrics import Metrics, Slo
from blink_numba.lab.step_times import Gap, Table
from graphs.step_io import EngineSpec
from ring.jit import source_digest
from scheduler.policy import Policy
from scheduler.policy_check import captured, pointers
from scheduler.simulator import Requests, simulate

Workload = Callable[[float, int], Requests]  # of load and seed


@dataclass(frozen=True)
class Point:
    """One simulation of a sweep."""

    policy: Policy
    load: float
    seed: int


def sweep(
    policies: Sequence[Policy],
    loads: Sequence[float],
    workload: Workload,
    *,
    table: Table,
    spec: EngineSpec,
    gap: Gap | str = "faf",
    seeds: Iterable[int] = (0,),
    slo: Slo | None = None,
    results: Path | str | None = None,
    ray: bool = False,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Simulate every policy under every load and seed.

    Parameters
    ----------
    workload : callable
        Makes the requests of a load (its unit is the workload's: requests a second, users) and a seed.
    table, spec, gap
        Step times, shapes of the engine, launch strategy.
    results : path, optional
        A file of JSON lines: rows found there are not simulated again, new ones are added as they come.
    ray : bool
        Run as Ray tasks (``pip install 'blink-numba[ray]'``).

    Returns
    -------
    list of dict
        `Metrics.row` with ``policy``, ``load``, ``seed``, ``wall_s``, in the order of the arguments.
    """
    points = [Point(policy, load, seed) for policy in policies for load in loads for seed in seeds]
    keys = [_key(point, workload, table, spec, gap, slo) for point in points]
    known = _known(results)
    for policy in policies:
        pointers(policy)  # errors before the first simulation, not in a thread
    todo = [index for index, key in enumerate(keys) if key not in known]

    def one(index: int) -> dict[str, Any]:
        return _simulate(points[index], workload, table, spec, gap, slo)

    start = "\n" if _cut_off(results) else ""
    run = _on_ray if ray else _on_threads
    with _bar(len(points), progress) as advance:
        advance(len(points) - len(todo))
        for index, row in run(one, todo):
            known[keys[index]] = row
            if results is not None:
                with Path(results).open("a") as file:
                    file.write(start + json.dumps({"key": keys[index], **row}) + "\n")
                start = ""
            advance(1)
    return [known[key] for key in keys]


def _simulate(
    point: Point, workload: Workload, table: Table, spec: EngineSpec, gap: Gap | str, slo: Slo | None
) -> dict[str, Any]:
    outcome = simulate(
        workload(point.load, point.seed), spec, table.times(gap), point.policy, seed=point.seed
    )
    return {
        "policy": point.policy.name,
        "load": point.load,
        "seed": point.seed,
        **Metrics.of(outcome, slo=slo).row(),
        "wall_s": outcome.wall_s,
    }


def _on_threads(
    one: Callable[[int], dict[str, Any]], todo: list[int]
) -> Iterator[tuple[int, dict[str, Any]]]:
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        futures = {pool.submit(one, index): index for index in todo}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _on_ray(one: Callable[[int], dict[str, Any]], todo: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        import ray
    except ImportError as error:
        raise RuntimeError("ray is not installed: pip install 'blink-numba[ray]'") from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    task = ray.remote(one)
    pending = {task.remote(index): index for index in todo}
    while pending:
        ready, _ = ray.wait(list(pending), num_returns=1)
        yield pending.pop(ready[0]), ray.get(ready[0])


def _cut_off(results: Path | str | None) -> bool:
    """Whether the file ends in the middle of a line: a sweep was killed while it wrote."""
    if results is None or not Path(results).is_file() or not Path(results).stat().st_size:
        return False
    return not Path(results).read_bytes().endswith(b"\n")


def _known(results: Path | str | None) -> dict[str, dict[str, Any]]:
    if results is None or not Path(results).is_file():
        return {}
    rows = {}
    for line in Path(results).read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
            rows[row.pop("key")] = row
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # cut off where a sweep was killed, or not ours
    return rows


def _key(
    point: Point, workload: Workload, table: Table, spec: EngineSpec, gap: Gap | str, slo: Slo | None
) -> str:
    """Names a simulation by all that decides its result, the sources of scheduler and policy included."""
    parts = [
        point.policy.name,
        dict(point.policy.parameters),
        point.policy.preempts,
        point.policy.margin,
        point.policy.accounting,
        point.load,
        point.seed,
        table,
        spec,
        gap,
        slo,
        source_digest(),
    ]
    parts += [_source(function) for function in point.policy.sources.values()]
    parts.append(_source(workload))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _source(value: Any, seen: frozenset[int] = frozenset()) -> str:
    """Names a function by its text and the values it uses; other things by what they show of themselves."""
    body = getattr(value, "py_func", value)
    if id(body) in seen:
        return "itself"
    if isinstance(body, np.ndarray):
        return f"{body.dtype}{body.shape}{hashlib.sha256(body.tobytes()).hexdigest()}"
    seen |= {id(body)}
    if dataclasses.is_dataclass(body) and not isinstance(body, type):
        fields = [getattr(body, field.name) for field in dataclasses.fields(body)]
        return f"{type(body).__name__}{[_source(part, seen) for part in fields]}"
    if not inspect.isfunction(body):  # of what may change at any time, such as a list, only the kind
        return repr(body) if isinstance(body, _CONSTANTS) else type(body).__name__
    try:
        text = inspect.getsource(body)
    except (OSError, TypeError):
        code = body.__code__
        text = f"{code.co_code!r}{code.co_consts!r}{code.co_names!r}"
    uses = [f"{name}={_source(part, seen)}" for name, part in captured(body).items()]
    return text + "".join(sorted(uses))


_CONSTANTS = (int, float, complex, str, bytes, tuple, np.generic, type(None))


class _bar:
    """A progress bar as a context that gives a function to advance it."""

    def __init__(self, total: int, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("simulating"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            disable=not shown,
        )
        self._total = total

    def __enter__(self) -> Callable[[int], None]:
        self._progress.start()
        task = self._progress.add_task("simulating", total=self._total)
        return lambda count: self._progress.update(task, advance=count)

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()
