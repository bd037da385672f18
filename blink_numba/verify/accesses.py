"""Accesses to the model's memory: what arrays and atomics of the checked code come to."""

from __future__ import annotations

from typing import Any

from blink_numba.verify.memory import DATA, SYNC, FlatRing, LaneWords, Shared, Violation, Words
from blink_numba.verify.places import BARRIER
from blink_numba.verify.world import World


class CheckedWorld(World):
    """A world whose accesses are switch points, are checked, and are told.

    Attributes
    ----------
    tokens : Shared
        The arena: a transport reaches two of its tokens with one word.
    """

    tokens: Shared = None  # type: ignore[assignment]

    # --- plain accesses: what arrays of the model call ---

    def read(self, array: Shared, index: int) -> int:
        if array.where[index] < 0 or index < 0:
            return self._unmodelled(array, index)
        behind, result = self._fed()
        if behind:
            return result
        kind = array.kind[index]
        if kind == SYNC:
            raise Violation("no-data-race", f"plain read of {array.name}[{index}], which others write")
        self.knowledge.read(self.agent, array.group[index])
        return self._log(self.memory[array.where[index]])

    def write(self, array: Shared, index: int, value: int) -> None:
        if array.where[index] < 0 or index < 0:
            self._write_unmodelled(array, index, value)
            return
        if self._fed()[0]:
            return
        if array.kind[index] == SYNC:
            raise Violation("no-data-race", f"plain write of {array.name}[{index}], which others read")
        self.knowledge.write(self.agent, array.group[index])
        self.memory[array.where[index]] = value
        if self.telling:
            self.tell(self.current, f"writes {array.name}[{index}] = {value}")
        self._log(None)

    def _unmodelled(self, array: Shared, index: int) -> int:
        array.check(index)
        return array.cells[index] if array.cells else 0

    def _write_unmodelled(self, array: Shared, index: int, value: int) -> None:
        array.check(index)
        if not array.cells:
            raise Violation("own-words", f"{self.current.name} wrote {array.name}[{index}] = {value}")
        array.cells[index] = value

    # --- atomics: the methods that `ring.atomics.interposer` has ---

    def _reach(self) -> tuple[bool, Any]:
        """Bring the lane to a switch point: whether a result was fed, and which."""
        actor = self.current
        if actor.lanes > 1 or actor.fed[self.lane] == len(actor.logs[self.lane]):
            self._park()
        return self._fed()

    def _load(self, array: Any, index: int, acquire: bool) -> int:
        if array.__class__ is LaneWords:
            return self._exchange(array, index, None, plain=True)
        if array.__class__ is FlatRing:
            array, index = array.at(index)
            if array is self.tokens:
                return self._load_pair(index)
        at, kind = array.where[index], array.kind[index]
        if at < 0:
            return self._unmodelled(array, index)
        if kind == SYNC and self.writers[at] != self.current.index:
            behind, result = self._reach()
        else:
            behind, result = self._fed()
        if behind:
            return result
        if kind == SYNC:
            if acquire:
                self.knowledge.acquire(self.agent, at)
            else:
                self.knowledge.relaxed_load(self.agent, at)
            if self.telling:
                self.tell(self.current, f"reads {self.show(array.name, index, self.memory[at])}")
        elif kind == DATA:
            self.knowledge.read(self.agent, array.group[index])
        return self._log(self.memory[at])

    def _load_pair(self, index: int) -> int:
        behind, result = self._fed()
        if behind:
            return result
        low, high = (self.tokens.where[index + k] for k in range(2))
        pair = [0 if at < 0 else self.memory[at] & 0xFFFFFFFF for at in (low, high)]
        return self._log(pair[0] | pair[1] << 32)

    def _store(self, array: Any, index: int, value: int, release: bool) -> None:
        if array.__class__ is Words:
            array[index] = value
            return
        if array.__class__ is LaneWords:
            self._exchange(array, index, lambda _: value, plain=True)
            return
        if array.__class__ is FlatRing:
            array, index = array.at(index)
            value = int(value)  # staging memory may be a NumPy array
            if array is self.tokens:
                self._store_pair(index, value)
                return
        at, kind = array.where[index], array.kind[index]
        if at < 0:
            self._write_unmodelled(array, index, value)
            return
        if (self._reach() if kind == SYNC else self._fed())[0]:
            return
        if kind == SYNC:
            if release:
                self.knowledge.release(self.agent, at)
            else:
                self.knowledge.relaxed_store(self.agent, at)
        else:
            self.knowledge.write(self.agent, array.group[index])
        before, self.memory[at] = self.memory[at], value
        if self.telling:
            self.tell(self.current, f"writes {self.show(array.name, index, value)}")
        self._log(None)
        self._watch(at, before, value)

    def _store_pair(self, index: int, value: int) -> None:
        if self._fed()[0]:
            return
        for k in range(2):
            at = self.tokens.where[index + k]
            if at >= 0:
                self.knowledge.write(self.agent, self.tokens.group[index + k])
                self.memory[at] = (value >> (32 * k)) & 0xFFFFFFFF
        self._log(None)

    def _watch(self, at: int, before: int, value: int) -> None:
        watcher = self.watchers.get(at)
        if watcher is not None:
            watcher(self.current.index, before, value)

    def load_relaxed(self, array: Any, index: int) -> int:
        if array.__class__ is Words:
            return array[index]
        return self._load(array, index, False)

    def load_acquire(self, array: Any, index: int) -> int:
        if array.__class__ is Words:
            return array[index]
        return self._load(array, index, True)

    def store_relaxed(self, array: Any, index: int, value: int) -> None:
        self._store(array, index, value, False)

    def store_release(self, array: Any, index: int, value: int) -> None:
        self._store(array, index, value, True)

    def compare_and_swap(self, array: Any, index: int, expected: int, desired: int) -> int:
        return self._exchange(array, index, lambda before: desired if before == expected else before)

    def fetch_add(self, array: Any, index: int, value: int) -> int:
        return self._exchange(array, index, lambda before: before + value)

    def _exchange(self, array: Any, index: int, change: Any, plain: bool = False) -> int:
        if array.__class__ is Words:
            before = array[index]
            array[index] = change(before)
            return before
        if array.__class__ is LaneWords:
            if not plain:  # loads and stores of state words move with the shared access before them
                self._park()
            self.lane_access(array, index, "atomic")
            before = array.raw(index)
            if change is not None:
                array.put(index, change(before))
            return before
        behind, result = self._reach()
        if behind:
            return result
        at = array.where[index]
        before = self.memory[at]
        after = change(before)
        self.knowledge.exchange(self.agent, at)
        self.memory[at] = after
        if self.telling:
            shown = self.show(array.name, index, after)
            self.tell(self.current, f"exchanges {shown}" if after != before else f"fails to exchange {shown}")
        self._log(before)
        if after != before:
            self._watch(at, before, after)
        return before

    def lane_access(self, array: LaneWords, index: int, how: str) -> None:
        """Account for an access of a lane to words that lanes share; a race is a violation.

        Lanes order their accesses by barriers: between two of them, no two lanes may touch a
        word, one at least to write, unless both do it atomically.
        """
        if self.current is None or self.current.lanes == 1 or self.current.entering:
            return
        key = (id(array), index)
        before = self.between_barriers.get(key)
        mine = (self.lane, how)
        if before is None or before == mine:
            self.between_barriers[key] = mine
            return
        lane, earlier = before
        if lane != self.lane and not (earlier == how and how in ("read", "atomic")):
            raise Violation(
                "no-data-race",
                f"lane {self.lane} {how} of {array.name}[{index}] beside a {earlier} of another lane",
            )
        if lane != self.lane:
            self.between_barriers[key] = (-1, how)
        elif how == "write":
            self.between_barriers[key] = mine

    def fence(self) -> None:
        actor = self.current
        if actor.fed[self.lane] == len(actor.logs[self.lane]):
            self.knowledge.fence(self.agent)

    def lane_barrier(self) -> None:
        if self.current.lanes > 1:
            self._park(BARRIER)

    def now_ns(self) -> int:
        """The scheduler's loop head: it takes the time once a turn."""
        self.head()
        return self.clock()

    def clock(self) -> int:
        """Time in the model."""
        return 0

    def pause(self, spins: int) -> None:
        """Nothing: a turn that changed nothing leads to the state it began in."""
