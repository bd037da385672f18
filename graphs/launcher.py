"""Launching a graph: one call for the scheduler, one meaning per target.

`launch` is a stub like those of `ring.atomics`. On the GPU it is a fire-and-forget
``cudaGraphLaunch`` (`graphs.device_launch`). On the CPU it is this file's launcher, which
behaves as the device does, so that windows, ping-pong executables and retries run on any
machine: launching is asynchronous; the 121st launch of a window fails with code 1;
relaunching an executable that still runs fails with code 1; completion is a flag that the
launched work releases.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from ring.atomics import load_acquire, load_relaxed, store_relaxed, store_release
from ring.jit import njit, uncounted
from ring.sections import LINE, Section, format_buffer, layout, section

LAUNCHER_MAGIC = 0x424C4E4B_4C4E4348  # "BLNKLNCH"
LAUNCHER_VERSION = 1

WINDOW = 120  # fire-and-forget launches of one parent execution (a total: completions free nothing)
_INLINED: Any = {"_nrt": False, "forceinline": True}
LAUNCHED = 0  # code of success
INVALID_VALUE = 1  # cudaErrorInvalidValue: window used up, or the executable still runs

QUEUE = 64  # entries of the mailbox; more than a scheduler ever has in flight

CORE, RUNNING, MAILBOX = range(3)
# words of CORE; scheduler's and engine's on lines of their own
L_WINDOW, L_SENT = 0, 1
L_TAKEN = LINE
L_STOP = 2 * LINE
CORE_WORDS = 3 * LINE


class Launcher(NamedTuple):
    """Views of a launcher buffer; int64. `running` has a line for each executable."""

    core: np.ndarray
    running: np.ndarray
    mailbox: np.ndarray


class PipelinedLauncher(NamedTuple):
    """A `Launcher` of a scheduler that launches a decode step behind the one in flight."""

    core: np.ndarray
    running: np.ndarray
    mailbox: np.ndarray

    AHEAD = True


def make_launcher(executables: int) -> np.ndarray:
    """Words of a launcher for a number of executables."""
    sections = [
        Section("core", CORE_WORDS),
        Section("running", executables, LINE),
        Section("mailbox", QUEUE),
    ]
    words = np.zeros(layout(sections)[1], np.int64)
    format_buffer(words, LAUNCHER_MAGIC, LAUNCHER_VERSION, sections)
    return words


@njit
def launcher_view(words):
    """Named views of a launcher buffer."""
    return Launcher(section(words, CORE), section(words, RUNNING), section(words, MAILBOX))


@njit
def pipelined_view(words):
    """The same buffer as a `PipelinedLauncher`."""
    return PipelinedLauncher(section(words, CORE), section(words, RUNNING), section(words, MAILBOX))


def launch(launcher, table, executable):
    """Launch an executable, asynchronously. Returns a code, 0 for success.

    Parameters
    ----------
    launcher : Launcher
    table : graphs.grid.GraphTable
    executable : int
        ``EXECS * graph + turn``.
    """
    return _emulated_launch(launcher, table, executable)


@uncounted
def _emulated_launch(launcher, table, executable):
    core = launcher.core
    if core[L_WINDOW] >= WINDOW:
        return INVALID_VALUE
    # pairs with the release in retire: the engine is done with this executable
    if load_acquire(launcher.running, executable * LINE) != 0:
        return INVALID_VALUE
    core[L_WINDOW] += 1
    store_relaxed(launcher.running, executable * LINE, 1)
    sent = load_relaxed(core, L_SENT)
    store_relaxed(launcher.mailbox, sent % QUEUE, executable)
    store_release(core, L_SENT, sent + 1)
    return LAUNCHED


@overload(launch)
def _(launcher, table, executable):
    if getattr(launcher, "instance_class", None) not in (Launcher, PipelinedLauncher):
        return None  # another launcher's overload answers (`graphs.strategies`, `graphs.host_launch`)
    return lambda launcher, table, executable: _emulated_launch(launcher, table, executable)


def runs_ahead(launcher):
    """Whether the scheduler launches a decode step before it saw the one in flight (`graphs.ahead`).

    A constant of the launcher's type, ``AHEAD``: what a scheduler does for it alone compiles away.
    """
    return getattr(launcher, "AHEAD", False)


@overload(runs_ahead, jit_options=_INLINED)
def _(launcher):
    if getattr(getattr(launcher, "instance_class", None), "AHEAD", False):
        return lambda launcher: True
    return lambda launcher: False


@uncounted
def open_window(launcher):
    """What a self tail launch does to the count of launches: begin anew."""
    launcher.core[L_WINDOW] = 0


# --- the engine's side ---


@uncounted
def peek(launcher, taken):
    """Executable number `taken` (0, 1, 2, …) of this launcher, -1 while it has not been launched.

    Any number of engine threads may look at one launch, each counting for itself.
    """
    # pairs with the release in launch: mailbox entry and the step's inputs are visible
    if load_acquire(launcher.core, L_SENT) <= taken:
        return -1
    return load_relaxed(launcher.mailbox, taken % QUEUE)


@uncounted
def retire(launcher, executable):
    """Say that an executable runs no more; after its DONE, as on the device."""
    store_release(launcher.running, executable * LINE, 0)  # pairs with the acquire in launch


@uncounted
def stop_engine(launcher):
    """Ask the engine's threads to end."""
    store_release(launcher.core, L_STOP, 1)


@uncounted
def engine_stopped(launcher):
    """Whether the engine's threads shall end."""
    return load_relaxed(launcher.core, L_STOP) != 0
