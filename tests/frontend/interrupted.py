"""Ctrl-C at many moments of an `LLM`'s start and of its `generate`; a process of its own.

A moment is a count of bytecodes of the main thread. Prints how many moments there were and what was
left at the end. A moment at which something waits for ever ends the process with the stacks of its
threads.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable

from blink_numba import LLM, SamplingParams
from ring import layout as at
from ring.memory import SHM, RingMemory
from tests.frontend.harness import wait_until

PATIENCE_S = 60.0  # of a moment; generous, for the machine may be busy
LONG = SamplingParams(max_tokens=2000, ignore_eos=True)  # what nobody cancelled would have all its tokens
SHORT = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
TRACED = ("blink_numba.", "threading", "tokenizer.", "queue")


class Moment:
    """Raises the signal before the `number`-th bytecode of the main thread; never, for number 0."""

    def __init__(self, number: int) -> None:
        self.number, self.count = number, 0

    def __call__(self, frame, event, argument):
        if not frame.f_globals.get("__name__", "").startswith(TRACED):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            self.count += 1
            if self.count == self.number:
                signal.raise_signal(signal.SIGINT)
        return self


def interrupt(number: int, call: Callable[[], object]) -> tuple[bool, int]:
    """Whether Ctrl-C ended a call, and how many bytecodes there were."""
    moment, ended = Moment(number), False
    sys.settrace(moment)
    try:
        call()
    except KeyboardInterrupt:
        ended = True
    finally:
        sys.settrace(None)
    return ended, moment.count


def make() -> LLM:
    return LLM("tiny", backend="cpu", max_num_seqs=4, kv_tokens=8192, slots=32)


def rings() -> list[str]:
    return [path.name.removeprefix("blink-numba-") for path in SHM.glob(f"blink-numba-llm-{os.getpid()}-*")]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]


def interrupt_starts(moments: int) -> None:
    _, bytecodes = interrupt(0, lambda: make().close())
    for k in range(moments):
        number = 1 + k * bytecodes // moments
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        ended, _ = interrupt(number, lambda: make().close())
        assert ended, f"Ctrl-C before bytecode {number} was lost"
        assert wait_until(lambda: not threads() and not rings()), (number, threads(), rings())


def interrupt_calls(moments: int) -> None:
    with make() as llm, RingMemory.attach(rings()[0]) as ring:
        first = llm.generate("abc", SHORT)[0].outputs[0].token_ids
        _, bytecodes = interrupt(0, lambda: llm.generate(["abc"] * 3, SHORT))
        for k in range(moments):
            number = 1 + k * bytecodes // moments
            faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
            before = int(ring.view.status[at.S_TOKENS])
            ended, _ = interrupt(number, lambda: llm.generate(["abc"] * 3, LONG))
            assert ended, f"Ctrl-C before bytecode {number} was lost"
            assert llm.generate("abc", SHORT)[0].outputs[0].token_ids == first
            assert wait_until(lambda: not llm._link.live and not llm._link.waiting)
            assert ring.view.status[at.S_TOKENS] - before < LONG.max_tokens, "not cancelled"
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)


def main(starts: int, calls: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    faulthandler.dump_traceback_later(4 * PATIENCE_S, exit=True)
    make().close()  # compiles what is not in the cache
    interrupt_starts(starts)
    interrupt_calls(calls)
    faulthandler.cancel_dump_traceback_later()
    print(starts, calls, threads())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
