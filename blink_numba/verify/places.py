"""Actors, and where they are: what a state of the model consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from greenlet import greenlet

if TYPE_CHECKING:
    from blink_numba.verify.world import World

OFF, RUN, DONE, DEAD = range(4)  # status of an actor
CRASH = -1  # the choice that an actor dies
HEAD, BARRIER, CHOICE, RESULT = "head", "barrier", "choice", "result"


class Place(NamedTuple):
    """Where an actor is.

    `head`: its private words at its loop head. `log`: results of its accesses since, one tuple a
    lane. `order`: lanes in the order they moved since. `options`: what it can do next.
    """

    status: int
    head: tuple
    log: tuple
    order: tuple
    options: tuple
    key: int


class State(NamedTuple):
    """A state of the whole model. `key` identifies it."""

    memory: tuple
    knowledge: tuple
    places: tuple[Place, ...]
    ghost: tuple
    key: tuple


class Step(NamedTuple):
    """One access, for the story."""

    actor: str
    text: str


class Actor:
    """Something that runs protocol code. Subclasses say what, and what is private to it.

    Attributes
    ----------
    name : str
    lanes : int
        Greenlets of this actor; they share its private words.
    """

    name = "actor"
    lanes = 1

    def __init__(self, world: World) -> None:
        self.world = world
        self.index = -1
        self.first_agent = -1
        self.initial = RUN
        self.may_crash = False
        self.entered: Place | None = None  # the place its live greenlets stand at
        self.threads: list[greenlet] = []
        self.logs: list[list] = []
        self.fed: list[int] = []
        self.waits: list[str] = []
        self.order: list[int] = []
        self.head: tuple = ()
        self.picked = 0
        self.entering = False

    def body(self, lane: int) -> None:
        """Run until done; call `World.head` at each loop head."""
        raise NotImplementedError

    def save(self) -> tuple:
        """Private words that matter at the loop head, nested tuples of int."""
        raise NotImplementedError

    def load(self, saved: tuple) -> None:
        """Put them back."""
        raise NotImplementedError
