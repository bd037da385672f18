"""Ways to launch a step, one launcher type each; the scheduler's `launch` is the same call for all.

==================  ==========================================  =====================================
strategy            launcher                                    a step's launch
==================  ==========================================  =====================================
``faf``             `FireAndForget`                             fire-and-forget from the resident
                                                                scheduler, 120 a window (the paper's)
``tail``            `TailPair`                                  tail launch of the step, then of the
                                                                scheduler itself
``while``           `WhileSwitch`                               a SWITCH node after the scheduler in
                                                                the body of a WHILE node
``host``            `graphs.host_launch.HostLauncher`           by the driver, from a CPU scheduler that
                                                                waits for the step
``host-pipelined``  `graphs.host_launch.HostPipelined`          the same, a decode step behind the one in
                                                                flight (`graphs.ahead`)
==================  ==========================================  =====================================

All hold the same two words at their head, so that the loops need not know which they drive.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphs._cuda import cuda_overload
from graphs.device_launch import launch_fire_and_forget, set_conditional, tail_launch
from graphs.grid import EXECS
from graphs.launcher import launch, runs_ahead

# words of a launcher's core
L_WINDOW, L_LOOP, L_SWITCH = 0, 1, 2
CORE_WORDS = 8


class FireAndForget(NamedTuple):
    """Launch beside the resident scheduler kernel."""

    core: np.ndarray


class TailPair(NamedTuple):
    """Launch after the scheduler kernel, which then launches itself after the step."""

    core: np.ndarray


class WhileSwitch(NamedTuple):
    """Choose the branch that runs after the scheduler kernel in a WHILE node's body."""

    core: np.ndarray


DEVICE_STRATEGIES = {"faf": FireAndForget, "tail": TailPair, "while": WhileSwitch}


@cuda_overload(launch, target="cuda")
def _launch_on_device(launcher, table, executable):
    bodies = {FireAndForget: _launch_beside, TailPair: _launch_after, WhileSwitch: _choose_branch}
    return bodies.get(getattr(launcher, "instance_class", None))


@cuda_overload(runs_ahead, target="cuda")
def _never_ahead(launcher):
    return lambda launcher: False


def _launch_beside(launcher, table, executable):
    return launch_fire_and_forget(table.handle[executable])


def _launch_after(launcher, table, executable):
    return tail_launch(table.handle[executable])


def _choose_branch(launcher, table, executable):
    set_conditional(launcher.core[L_SWITCH], executable // EXECS)
    return 0
