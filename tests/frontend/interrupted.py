"""Ctrl-C at many moments of `LLM.generate`, each named by a count of bytecodes; a process of its own.

Prints how many moments there were and what was left at the end. A moment at which something waits
for ever ends the process with the stacks of its threads.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading

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


def interrupt(llm: LLM, number: int, params: SamplingParams) -> tuple[bool, int]:
    """Whether Ctrl-C ended a call of `generate`, and how many bytecodes there were."""
    moment, ended = Moment(number), False
    sys.settrace(moment)
    try:
        llm.generate(["abc"] * 3, params)
    except KeyboardInterrupt:
        ended = True
    finally:
        sys.settrace(None)
    return ended, moment.count


def main(moments: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    faulthandler.dump_traceback_later(PATIENCE_S * 2, exit=True)
    with (
        LLM("tiny", backend="cpu", max_num_seqs=4, kv_tokens=8192, slots=32) as llm,
        RingMemory.attach(
            next(SHM.glob(f"blink-numba-llm-{os.getpid()}-*")).name.removeprefix("blink-numba-")
        ) as ring,
    ):
        first = llm.generate("abc", SHORT)[0].outputs[0].token_ids
        _, bytecodes = interrupt(llm, 0, SHORT)
        for k in range(moments):
            faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
            before = int(ring.view.status[at.S_TOKENS])
            ended, _ = interrupt(llm, 1 + k * bytecodes // moments, LONG)
            assert ended, f"Ctrl-C before bytecode {1 + k * bytecodes // moments} was lost"
            assert llm.generate("abc", SHORT)[0].outputs[0].token_ids == first
            assert wait_until(lambda: not llm._link.live and not llm._link.waiting)
            assert ring.view.status[at.S_TOKENS] - before < LONG.max_tokens, "not cancelled"
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    left = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    faulthandler.cancel_dump_traceback_later()
    print(moments, bytecodes, left)


if __name__ == "__main__":
    main(int(sys.argv[1]))
