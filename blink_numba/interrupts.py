"""Ctrl-C, held back while something is half done.

Python raises `KeyboardInterrupt` between any two bytecodes of the main thread: also right after
a lock was taken and before the `with` that would give it back was entered. A lock of the compiler
or of an event that another thread needs then stays taken, and that thread waits for ever. So the
signal is noted, and acted upon where its code says `look`, or at the end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """The Ctrl-C that was held back, if any.

    Parameters
    ----------
    wake : callable
        Called when one comes, by the signal's handler, between any two bytecodes of the main
        thread: it must be safe there, as `queue.SimpleQueue.put` is.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._handler: Any = None  # whose turn it is when the signal is let through
        self._held: tuple[int, FrameType | None] | None = None

    def look(self) -> None:
        """Let a Ctrl-C that was held back happen now; it usually raises `KeyboardInterrupt`."""
        if self._held is not None:  # written only then: one that comes just now must not be wiped out
            held, self._held = self._held, None
            self._handler(*held)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._held is not None:  # nobody looked since the last one: whoever insists gets through
            self._held = None
            self._handler(number, frame)
            return
        self._held = number, frame
        self._wake()

    def _install(self) -> bool:
        # Python calls handlers on the main thread alone; elsewhere nothing can be interrupted.
        if threading.current_thread() is not threading.main_thread():
            return False
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # ignored, the system's default, or not Python's: left as it is
            return False
        self._handler = handler
        signal.signal(signal.SIGINT, self._hold)
        return True


@contextmanager
def held_back(wake: Callable[[], object] = lambda: None) -> Iterator[Interrupts]:
    """Hold Ctrl-C back in this block, but for its calls of `look` and its end.

    A second one that comes before the first was looked at is not held back.

    Parameters
    ----------
    wake : callable
        As of `Interrupts`: ends a wait of the block so that it looks.
    """
    interrupts = Interrupts(wake)
    installed = interrupts._install()
    try:
        yield interrupts
    finally:
        if installed:
            signal.signal(signal.SIGINT, interrupts._handler)
            interrupts.look()
