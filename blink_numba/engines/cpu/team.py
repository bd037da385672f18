"""The engine's threads as a team: a leader, followers, tasks and a barrier between phases.

All threads run the same step. Each works through its own share of a phase's tasks, which are
neighbours in memory, and then helps the others with theirs; the leader takes launches and
publishes results. Waiting spins for the length of a phase and then sleeps (the scheduler's
thread needs a core too).

No wait within a step is for ever: a team-mate that does not come within the team's patience
breaks the team, every wait of a broken team returns at once, and the step ends with
`FAULT_TEAM`. Time in which nobody runs (a stopped process, a suspended machine) is not counted.
"""

from __future__ import annotations

import numpy as np

from ring.atomics import fetch_add, load_acquire, load_relaxed, now_ns, pause, store_relaxed, store_release
from ring.jit import uncounted
from ring.sections import LINE

# words of a team, each on a line of its own
ARRIVED, PHASE, STEP, QUIT, BROKEN, FAULTS = (LINE * k for k in range(6))
# words of a step, written by the leader before it lets the followers in
ROWS, SAMPLES, TOGETHER = (LINE * 6 + k for k in range(3))
# words that never change
THREADS, PATIENCE_NS = (LINE * 7 + k for k in range(2))
TAKEN = LINE * 8  # a line for each member: tasks taken of its share

DEFAULT_PATIENCE_S = 60.0
SPINS_BEFORE_SLEEP = 3000  # about a tenth of a millisecond: longer than a phase of a decode step
_LOOKS_BETWEEN_CLOCKS = 256
_LONGEST_GAP_NS = 100_000_000


def make_team(threads: int, patience_s: float = DEFAULT_PATIENCE_S) -> np.ndarray:
    """Words of a team of so many threads, who wait for each other so long."""
    team = np.zeros(TAKEN + threads * LINE, np.int64)
    team[THREADS] = threads
    team[PATIENCE_NS] = int(patience_s * 1e9)
    return team


@uncounted
def give_way(looks):
    """Pass a moment of a wait that has looked so often in vain."""
    if looks < SPINS_BEFORE_SLEEP:
        pause(0)
    else:
        pause(looks)


@uncounted
def wait_change(team, word, seen):
    """Wait until a word differs from `seen`; its value, or `seen` if the team broke."""
    looks, waited, last = 0, 0, now_ns()
    while True:
        value = load_acquire(team, word)  # pairs with the releases in barrier, begin_step and quit_team
        if value != seen or load_relaxed(team, BROKEN) != 0:
            return value
        give_way(looks)
        looks += 1
        if looks % _LOOKS_BETWEEN_CLOCKS == 0:
            now = now_ns()
            waited += min(now - last, _LONGEST_GAP_NS)
            last = now
            if waited > team[PATIENCE_NS]:
                store_release(team, BROKEN, 1)


@uncounted
def barrier(team):
    """Wait for all threads; all they wrote is visible after, and no task of the next phase is taken."""
    threads, phase = team[THREADS], load_relaxed(team, PHASE)
    if fetch_add(team, ARRIVED, 1) == threads - 1:
        store_relaxed(team, ARRIVED, 0)
        for member in range(threads):
            store_relaxed(team, TAKEN + member * LINE, 0)
        store_release(team, PHASE, phase + 1)  # pairs with the acquire in wait_change
    else:
        wait_change(team, PHASE, phase)


@uncounted
def take_task(team, member, count):
    """The next task of this phase for a member, 0 … count - 1, or -1 when none is left."""
    threads = team[THREADS]
    for k in range(threads):
        whose = (member + k) % threads
        task = whose * count // threads + fetch_add(team, TAKEN + whose * LINE, 1)
        if task < (whose + 1) * count // threads:
            return task
    return -1


@uncounted
def begin_step(team, rows, samples, together):
    """The leader lets the followers into a step.

    Parameters
    ----------
    rows, samples : int64
        Tokens to process, and how many of them to sample from.
    together : int64
        1 when rows of the step attend to each other.
    """
    team[FAULTS] = 0
    team[ROWS] = rows
    team[SAMPLES] = samples
    team[TOGETHER] = together
    store_release(team, STEP, load_relaxed(team, STEP) + 1)  # pairs with the acquire in await_step


@uncounted
def await_step(team, seen):
    """A follower's wait for the next step; its number, or -1 when the team is dismissed.

    There may be no step for hours: this wait ends by a step or by `quit_team`, whose owner
    lives as long as the thread does.
    """
    looks = 0
    while load_relaxed(team, QUIT) == 0:
        step = load_acquire(team, STEP)  # pairs with the release in begin_step
        if step != seen:
            return step
        give_way(looks)
        looks += 1
    return -1


@uncounted
def quit_team(team):
    """Dismiss the followers, after the step they may be in."""
    store_release(team, QUIT, 1)


@uncounted
def is_broken(team):
    """Whether a team-mate did not come in time."""
    return load_relaxed(team, BROKEN) != 0
