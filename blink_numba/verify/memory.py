"""Memory of the model: words that several actors share, and the order that they establish.

The checker runs one interleaving at a time, so by itself it would see only sequentially
consistent executions, in which a dropped release or acquire never shows. Hence *knowledge*:
for each payload the memory remembers its latest write and the latest read of each agent, and
for each agent which of those happened before it. A release leaves the agent's knowledge at
the word, an acquire takes it over, as C++ and PTX define it. An access to a payload whose
predecessor is not known is a data race, whatever value it would have brought.

Knowledge is a bit mask (a bit for each latest access), so it is part of a state and states
that differ only in it are told apart. To keep those few, a word carries only the knowledge it
is there to carry (`carried`): the control word of a slot that of this slot's extents, say.
What is correct only because knowledge took a detour would be reported as a race.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

SILENT, SYNC, DATA, RAW, OWN = range(5)
"""Kinds of word. SILENT: nobody in the model looks. SYNC: every access is a switch point.
DATA: payload, checked for races. RAW: as DATA for writers, unchecked for readers, who check
what they use. OWN: private to the one actor that uses it."""


class Violation(Exception):
    """An invariant does not hold: its name, and what was seen."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail


class Words(list):
    """Private words of an actor: a list that answers `.shape` as an array does."""

    __slots__ = ("shape",)

    def __init__(self, values: Any) -> None:
        super().__init__(values)
        self.shape = (len(self),)

    def save(self, count: int | None = None) -> tuple[int, ...]:
        """The first `count` words."""
        return tuple(self) if count is None else tuple(self[:count])

    def load(self, values: tuple[int, ...]) -> None:
        """Put saved words back."""
        self[: len(values)] = values


class LaneWords(Words):
    """Private words of an actor with several lanes: every access is accounted for."""

    __slots__ = ("name", "world")

    def __init__(self, world: Any, name: str, values: Any) -> None:
        super().__init__(values)
        self.world, self.name = world, name

    def __getitem__(self, index: Any) -> Any:
        self.world.lane_access(self, index, "read")
        return list.__getitem__(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.world.lane_access(self, index, "write")
        list.__setitem__(self, index, value)

    def raw(self, index: int) -> int:
        """A word, unaccounted."""
        return list.__getitem__(self, index)

    def put(self, index: int, value: int) -> None:
        """Set a word, unaccounted."""
        list.__setitem__(self, index, value)

    def save(self, count: int | None = None) -> tuple[int, ...]:
        return tuple(self) if count is None else tuple(list.__getitem__(self, slice(0, count)))

    def load(self, values: tuple[int, ...]) -> None:
        list.__setitem__(self, slice(0, len(values)), values)


class Table:
    """A two-dimensional private table: ``table[i, j]`` and row views ``table[i]``."""

    __slots__ = ("rows", "shape")

    def __init__(self, rows: int, columns: int, visible: int | None = None) -> None:
        self.rows = [Words([0] * columns) for _ in range(rows)]
        self.shape = (rows if visible is None else visible, columns)

    def __getitem__(self, index: Any) -> Any:
        if index.__class__ is tuple:
            return self.rows[index[0]][index[1]]
        return self.rows[index]

    def __setitem__(self, index: tuple[int, int], value: int) -> None:
        self.rows[index[0]][index[1]] = value


class Shared:
    """An array of shared words, as protocol code indexes it.

    Attributes
    ----------
    where : list of int
        Word of the model's memory behind each index; -1 for a word that is zero and stays so.
    kind : list of int
    group : list of int
        The payload a DATA or RAW word belongs to.
    """

    __slots__ = ("cells", "group", "kind", "name", "shape", "where", "world")

    def __init__(self, world: Any, name: str, length: int, kind: int = SILENT) -> None:
        self.world = world
        self.name = name
        self.shape = (length,)
        self.where = [-1] * length
        self.kind = [kind] * length
        self.group = [-1] * length
        self.cells: list[int] = [0] * length if kind in (SILENT, OWN) else []

    def __getitem__(self, index: int) -> int:
        return self.world.read(self, index)

    def __setitem__(self, index: int, value: int) -> None:
        self.world.write(self, index, value)

    def check(self, index: int) -> None:
        """Raise unless `index` lies inside."""
        if not 0 <= index < self.shape[0]:
            raise Violation("in-bounds", f"{self.name}[{index}] of {self.shape[0]} words")


class FlatRing:
    """The whole ring by word number, as a transport addresses it."""

    def __init__(self, size: int, pieces: list[tuple[int, Any]], arena: tuple[int, Shared]) -> None:
        self.shape = (size,)
        self._arena_start, self.tokens = arena
        self._of: dict[int, tuple[Shared, int]] = {}
        for start, array in pieces:
            for index in range(array.shape[0]):
                self._of[start + index] = (array, index)

    def at(self, word: int) -> tuple[Shared, int]:
        """Array and index of a word; for the arena, index of the first of its two tokens."""
        found = self._of.get(word)
        if found is not None:
            return found
        if word < self._arena_start or 2 * (word - self._arena_start) >= self.tokens.shape[0]:
            raise Violation("in-bounds", f"ring word {word} written or read by a front end")
        return self.tokens, 2 * (word - self._arena_start)


class Window:
    """Private words from a first one on."""

    __slots__ = ("first", "words")

    def __init__(self, words: Words, first: int) -> None:
        self.words, self.first = words, first

    def __getitem__(self, index: int) -> int:
        return self.words[self.first + index]

    def __setitem__(self, index: int, value: int) -> None:
        self.words[self.first + index] = value


class Narrow:
    """int32 halves of private words."""

    __slots__ = ("words",)

    def __init__(self, words: Words) -> None:
        self.words = words

    def __getitem__(self, index: int) -> int:
        return (self.words[index >> 1] >> (32 * (index & 1))) & 0xFFFFFFFF


class Knowledge:
    """Who knows of which access to which payload.

    Parameters
    ----------
    agents : int
        Actors, each lane counted for itself.
    fencing : int
        The first of them that use fences; what relaxed loads bring matters for these alone.
    """

    def __init__(self, agents: int, fencing: int, describe: Callable[[int], str]) -> None:
        self.agents = agents
        self.stride = agents + 1
        self.fencing = fencing
        self.describe = describe
        self.known = [0] * agents  # happened before the agent's next access
        self.released = [0] * agents  # … before its last fence
        self.pending = [0] * agents  # what relaxed loads saw, taken over by the next fence
        self.issued: list[int] = []  # of each payload: bits of its latest accesses
        self.tags: list[int] = []  # of each word: what its last release left
        self.carried: list[int] = []  # of each word: the knowledge that it is there to carry
        self.fenced = -1  # the knowledge that fences are there for
        self._fresh = [0] * agents  # accesses that nobody else can have seen yet

    def save(self) -> tuple[tuple[int, ...], ...]:
        """Everything, hashable."""
        return (
            tuple(self.known),
            tuple(self.released),
            tuple(self.pending),
            tuple(self.issued),
            tuple(self.tags),
        )

    def load(self, saved: tuple[tuple[int, ...], ...]) -> None:
        """Put saved knowledge back."""
        self.known[:], self.released[:], self.pending[:], self.issued[:], self.tags[:] = saved
        self.begin()

    def begin(self) -> None:
        """An agent begins to run: others may have looked meanwhile."""
        for agent in range(self.agents):
            self._fresh[agent] = 0

    def new_payload(self) -> int:
        """Number of a new payload."""
        self.issued.append(0)
        return len(self.issued) - 1

    def new_word(self) -> None:
        """One more word."""
        self.tags.append(0)
        self.carried.append(0)

    def written(self, payloads: Iterable[int]) -> int:
        """Bits of the latest writes of payloads."""
        return sum(1 << (payload * self.stride) for payload in payloads)

    def read_by(self, agents: Iterable[int], payloads: Iterable[int]) -> int:
        """Bits of the latest reads of payloads by agents."""
        readers = sum(1 << (1 + agent) for agent in agents)
        return sum(readers << (payload * self.stride) for payload in payloads)

    def read(self, agent: int, payload: int) -> None:
        """Account for a read; a race is a violation."""
        write = 1 << (payload * self.stride)
        mine = write << (1 + agent)
        if self._fresh[agent] & mine:
            return
        if self.issued[payload] & write & ~self.known[agent]:
            raise Violation("no-data-race", f"read of {self.describe(payload)} not ordered after its write")
        self._latest(agent, mine)
        self.issued[payload] |= mine

    def write(self, agent: int, payload: int) -> None:
        """Account for a write; a race is a violation."""
        write = 1 << (payload * self.stride)
        if self._fresh[agent] & write:
            return
        if self.issued[payload] & ~self.known[agent]:
            raise Violation(
                "no-data-race", f"write of {self.describe(payload)} not ordered after its last access"
            )
        self._latest(agent, ((1 << self.stride) - 1) << (payload * self.stride), write)
        self.issued[payload] = write

    def _latest(self, agent: int, outdated: int, new: int | None = None) -> None:
        keep = ~outdated
        for masks in (self.known, self.released, self.pending, self.tags):
            for index, mask in enumerate(masks):
                if mask & outdated:
                    masks[index] = mask & keep
        new = outdated if new is None else new
        self.known[agent] |= new
        self._fresh[agent] |= new

    def acquire(self, agent: int, word: int) -> None:
        self.known[agent] |= self.tags[word]

    def relaxed_load(self, agent: int, word: int) -> None:
        if agent < self.fencing:
            self.pending[agent] |= self.tags[word]

    def release(self, agent: int, word: int) -> None:
        self.tags[word] = self.known[agent] & self.carried[word]
        self._fresh[agent] = 0

    def relaxed_store(self, agent: int, word: int) -> None:
        self.tags[word] = self.released[agent] & self.carried[word]
        self._fresh[agent] = 0

    def exchange(self, agent: int, word: int) -> None:
        """An acquire-release read-modify-write."""
        self.known[agent] |= self.tags[word]
        self.tags[word] |= self.known[agent] & self.carried[word]
        self._fresh[agent] = 0

    def fence(self, agent: int) -> None:
        self.known[agent] |= self.pending[agent]
        self.released[agent] = self.known[agent] & self.fenced
        self._fresh[agent] = 0

    def meet(self, agents: range) -> None:
        """A barrier of these agents."""
        together = 0
        for agent in agents:
            together |= self.known[agent]
        for agent in agents:
            self.known[agent] = together
            self._fresh[agent] = 0

    def witness(self, agent: int, other: int) -> None:
        """`agent` saw that `other` has ended."""
        self.known[agent] |= self.known[other]
