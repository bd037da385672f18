"""Tokens of one answer to its text: whole characters, stop strings held back and cut off.

The server and `LLM` use this one path, streaming or not, so the text of an answer depends on
its tokens alone and never on how they were grouped on their way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from ring.states import Reason


class Decoder(Protocol):
    """Part of `tokenizer.stream.StreamDecoder` that is used here."""

    def push(self, token_id: int, /) -> str: ...
    def push_many(self, ids: list[int], /) -> str: ...
    def flush(self) -> str: ...


class StopStrings:
    """Finds the first stop string in a text that grows.

    Parameters
    ----------
    stops : tuple of str
        At least one, none empty.
    """

    __slots__ = ("_find", "_longest", "_prefixes")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._find = re.compile("|".join(map(re.escape, stops))).search
        self._prefixes = {stop[:end] for stop in stops for end in range(1, len(stop))}
        self._longest = max(map(len, stops)) - 1

    def search(self, text: str) -> tuple[int, int] | None:
        """Start and end of the first stop string in `text`."""
        found = self._find(text)
        return found.span() if found else None

    def held(self, text: str) -> int:
        """Length of the longest end of `text` that may be the beginning of a stop string."""
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._prefixes:
                return length
        return 0


@lru_cache(maxsize=256)
def _stop_strings(stops: tuple[str, ...]) -> StopStrings:
    return StopStrings(stops)


class Answer:
    """Text of one answer, piece by piece.

    Parameters
    ----------
    decoder : Decoder
        A fresh stream decoder.
    stops : tuple of str
        Stop strings.
    eos_ids, stop_ids : frozenset of int
        Ids that end the answer. The last token is left out of the text when it is one of them
        and ended the answer; a stop id is also its `stop_reason`.
    min_tokens : int
        Stop strings that are complete earlier do not end the answer.
    include_stop : bool
        Keep the stop string in the text.

    Attributes
    ----------
    tokens : int
        Tokens that belong to the answer so far.
    finish : str or None
        ``stop`` or ``length`` (or ``abort``) once it ended; more tokens are then ignored.
    stop_reason : str or int or None
        The stop string or id that ended it.
    """

    __slots__ = (
        "_decoder", "_end_ids", "_include_stop", "_min_tokens", "_stop_ids", "_stops", "_tail",
        "_withheld", "finish", "stop_reason", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        decoder: Decoder,
        *,
        stops: tuple[str, ...] = (),
        eos_ids: frozenset[int] = frozenset(),
        stop_ids: frozenset[int] = frozenset(),
        min_tokens: int = 0,
        include_stop: bool = False,
    ) -> None:
        self._decoder = decoder
        self._stops = _stop_strings(stops) if stops else None
        self._end_ids = eos_ids | stop_ids
        self._stop_ids = stop_ids
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._tail = ""  # decoded, but perhaps the beginning of a stop string
        self._withheld: int | None = None  # an end id that may turn out to be the last token
        self.tokens = 0
        self.finish: str | None = None
        self.stop_reason: str | int | None = None

    def push(self, ids: Sequence[int]) -> str:
        """Text that `ids` add to the answer, possibly empty; sets `finish` at a stop string."""
        if self.finish is not None or not ids:
            return ""
        ends = self._end_ids
        if self._stops is None and self._withheld is None and ends.isdisjoint(ids):
            self.tokens += len(ids)
            return self._decoder.push(ids[0]) if len(ids) == 1 else self._decoder.push_many(list(ids))
        pieces = []
        for token in ids:
            if self._withheld is not None:
                pieces.append(self._text(self._decoder.push(self._withheld)))
                self._withheld = None
                if self.finish is not None:
                    return "".join(pieces)
            self.tokens += 1
            if token in ends:
                self._withheld = token
                continue
            pieces.append(self._text(self._decoder.push(token)))
            if self.finish is not None:
                break
        return "".join(pieces)

    def end(self, reason: Reason) -> str:
        """Rest of the text once the scheduler finished the answer for `reason`."""
        if self.finish is not None:
            return ""
        last = ""
        if self._withheld is not None:
            if reason is Reason.STOP:
                self.stop_reason = self._withheld if self._withheld in self._stop_ids else None
            else:
                last = self._text(self._decoder.push(self._withheld))
            self._withheld = None
        if self.finish is None:
            last += self._text(self._decoder.flush())
        if self.finish is None:
            self.finish = {Reason.STOP: "stop", Reason.LENGTH: "length"}.get(reason, "abort")
            last += self._tail
            self._tail = ""
        return last

    def _text(self, piece: str) -> str:
        if self._stops is None:
            return piece
        text = self._tail + piece
        found = self._stops.search(text) if self.tokens >= self._min_tokens else None
        if found is not None:
            start, end = found
            self.finish, self.stop_reason, self._tail = "stop", text[start:end], ""
            return text[: end if self._include_stop else start]
        held = self._stops.held(text)
        self._tail = text[len(text) - held :] if held else ""
        return text[: len(text) - held] if held else text
