"""Random and given schedules: one long execution at a time, without going back.

For configurations too large to exhaust, and to kill mutants quickly. A schedule is chosen by
a seeded generator, so a seed replays it; a trace (`blink_numba.verify.story.encode`) replays
it anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from blink_numba.verify.memory import Violation
from blink_numba.verify.model import Model
from blink_numba.verify.places import CRASH, State

STYLES = ("even", "bursts", "freeze", "stall")
BURSTS, FREEZES, STALL = (1, 2, 5, 12, 40), (20, 60, 120, 250), 250
DEEPEST = 12  # accesses since its loop head after which an actor stalls
CRASH_CHANCE = 0.03
FIRST_CHOICE = 0.85  # of a choice such as whether to cancel, how often the first: not yet


@dataclass
class Walk:
    """One execution.

    Attributes
    ----------
    trace : list of (actor, choice)
    finished : bool
        Whether it came to the end of all requests.
    violation : Violation, optional
    """

    trace: list[tuple[int, int]] = field(default_factory=list)
    finished: bool = False
    violation: Violation | None = None


def random_chooser(seed: int) -> Callable[[State, list[tuple[int, int]]], tuple[int, int]]:
    """A seeded way to choose moves; its style is of the seed.

    Even; in bursts of one actor; with one actor frozen now and then; or with one actor that
    stalls deep in its loop, for long enough that the others come round.
    """
    generator = random.Random(seed)
    style = STYLES[seed % len(STYLES)]
    held = {"actor": -1, "left": 0, "until": 0}

    def among(moves: list[tuple[int, int]]) -> tuple[int, int]:
        if moves[0][1] == 0 and generator.random() < FIRST_CHOICE:
            return moves[0]
        return generator.choice(moves)

    def choose(state: State, moves: list[tuple[int, int]]) -> tuple[int, int]:
        deaths = [move for move in moves if move[1] == CRASH]
        if deaths and generator.random() < CRASH_CHANCE:
            return generator.choice(deaths)
        actors = sorted({move[0] for move in moves})
        if style == "stall":
            if held["left"] > 0:
                held["left"] -= 1
                actors = [actor for actor in actors if actor != held["actor"]] or actors
            else:
                if held["until"] <= 0:
                    held["actor"], held["until"] = generator.choice(actors), generator.randrange(1, DEEPEST)
                place = state.places[held["actor"]]
                if place.log and len(place.log[0]) >= held["until"]:
                    held["left"], held["until"] = STALL, 0
        elif style != "even":
            if held["left"] <= 0:
                held["actor"] = generator.choice(actors)
                held["left"] = generator.choice(BURSTS if style == "bursts" else FREEZES)
            held["left"] -= 1
            if style == "bursts" and held["actor"] in actors:
                actors = [held["actor"]]
            elif style == "freeze":
                actors = [actor for actor in actors if actor != held["actor"]] or actors
        actor = generator.choice(actors)
        return among([move for move in moves if move[0] == actor and move[1] != CRASH])

    return choose


def walk(
    model: Model, choose: Callable[[State, list[tuple[int, int]]], tuple[int, int]], *, longest: int = 2500
) -> Walk:
    """Run until the end of all requests, a violation, or `longest` moves.

    An execution that is not over then goes on evenly for as long again: without an end even
    so, it violates `progress`.
    """
    outcome = Walk()
    try:
        state = model.start()
        fair = random_chooser(0)
        for number in range(2 * longest):
            if model.is_goal(state):
                model.check_goal(state)
                outcome.finished = True
                return outcome
            moves = model.moves(state)
            if not moves:
                raise Violation("progress", "nobody can move, and not all requests have ended")
            if number < longest:
                move = choose(state, moves)
            else:
                move = fair(state, [move for move in moves if move[1] != CRASH])
            outcome.trace.append(move)
            state = model.move(state, *move)
        raise Violation("progress", f"no end after {2 * longest} moves, half of them fair")
    except Violation as violation:
        outcome.violation = violation
    except (IndexError, OverflowError) as error:
        outcome.violation = Violation("in-bounds", f"{type(error).__name__}: {error}")
    return outcome


def replay(model: Model, trace: list[tuple[int, int]]) -> Walk:
    """Run a trace as far as it goes."""
    outcome = Walk()
    try:
        state = model.start()
        for move in trace:
            if move not in model.moves(state):
                break
            outcome.trace.append(move)
            state = model.move(state, *move)
        if model.is_goal(state):
            model.check_goal(state)
            outcome.finished = True
    except Violation as violation:
        outcome.violation = violation
    return outcome
