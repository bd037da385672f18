"""From policies to a compiled loop.

On the CPU the loop is compiled once and takes a policy's functions as pointers: a new policy
costs the compilation of a few lines, and a swap costs a call. On the GPU there are no
pointers: `combine` makes one policy out of many that asks, by a word, which one is meant.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numba.core import types

from ring.jit import njit, uncounted, uncounted_pointer
from scheduler import state as sc
from scheduler.loops import cpu
from scheduler.policy import FUNCTIONS, ONE_ARGUMENT, Policy, PolicyError, install, preload
from scheduler.policy_check import SIGNATURES, WORDS, pointers
from scheduler.state import borrowed_view, state_view

NARROW = types.Array(types.int32, 1, "C")
POINTERS = tuple(types.FunctionType(SIGNATURES[kind]) for kind in FUNCTIONS)
_compiling = threading.Lock()


@cache
def _compiled_run(pipelined: bool = False) -> Any:
    """`scheduler.loops.cpu.run` for any policy: compiled once, kept in the cache folder."""
    compiled = njit((cpu.run_pipelined if pipelined else cpu.run).py_func)
    compiled.compile((WORDS, NARROW, WORDS, WORDS, WORDS, WORDS, *POINTERS))
    compiled.disable_compile()  # so that functions are passed as the pointers of this signature
    return compiled


@dataclass(frozen=True)
class CpuLoop:
    """The CPU loop of a policy; call it on the thread that is to be the scheduler.

    Attributes
    ----------
    policy : Policy
    pipelined : bool
        Whether decode steps are launched ahead (`scheduler.ahead`); the engine must hand on.
    """

    policy: Policy
    pipelined: bool = False

    def __call__(
        self, words: np.ndarray, state: np.ndarray, io: np.ndarray, table: np.ndarray, launcher: np.ndarray
    ) -> int:
        """Run until stopped, parked or faulted; returns the verdict (`scheduler.state`)."""
        functions = pointers(self.policy)
        run = _compiled_run(self.pipelined)
        return int(run(words, words.view(np.int32), state, io, table, launcher, *functions))

    def compile(self) -> None:
        """Compile now, so that the first call does not."""
        with _compiling:
            pointers(self.policy)
            _compiled_run(self.pipelined)


def cpu_loop(policy: Policy) -> CpuLoop:
    """The loop of a policy."""
    return CpuLoop(policy)


def combine(policies: Sequence[Policy], name: str = "presets") -> Policy:
    """One policy that acts as whichever of `policies` is in force (`scheduler.swap`).

    Its functions are made in a module of their own, where the policies' functions are globals:
    so they compile for the GPU, where a function cannot be an argument of a kernel.

    Raises
    ------
    PolicyError
        Two have one name, or they are too many.
    """
    names = [chosen.name for chosen in policies]
    if len(set(names)) != len(names):
        raise PolicyError(f"two of the policies to combine have one name: {sorted(names)}")
    if not 0 < len(policies) <= sc.PRESETS:
        raise PolicyError(f"{len(policies)} policies to combine; 1 to {sc.PRESETS} can be")
    functions = {}
    for kind in FUNCTIONS:
        functions[kind] = _choice(kind, [getattr(chosen, kind) for chosen in policies])
    return Policy(name, **functions)


def _choice(kind: str, bodies: list[Callable[..., Any]]) -> Callable[..., Any]:
    """A function that calls the body of the policy in force; the body itself if all are one."""
    distinct = list(dict.fromkeys(bodies))
    if len(distinct) == 1:
        return distinct[0]
    arguments = "hot, words" if kind in ONE_ARGUMENT else "hot, words, request"
    lines = [f"def {kind}({arguments}):", "    active = active_policy(hot, words)"]
    for place, body in enumerate(distinct[1:], 1):
        members = [index for index, other in enumerate(bodies) if other is body]
        test = " or ".join(f"active == {index}" for index in members)
        lines += [f"    if {test}:", f"        return body_{place}({arguments})"]
    lines.append(f"    return body_0({arguments})")
    module = {"active_policy": active_policy, **{f"body_{i}": body for i, body in enumerate(distinct)}}
    exec("\n".join(lines), module)
    return uncounted_pointer(module[kind], cache=False)


@uncounted
def active_policy(hot, words):
    """Index of the policy in force among the presets."""
    return borrowed_view(hot, words).policy[sc.P_ACTIVE]


def set_up(state_words: np.ndarray, chosen: Policy, presets: Sequence[Policy] = ()) -> None:
    """Write a policy and the presets into a fresh state, before the scheduler runs.

    Parameters
    ----------
    chosen : Policy
        The one to begin with; one of `presets`, if there are any.
    """
    state = state_view(state_words)
    preload(state, list(presets))
    install(state, chosen)
