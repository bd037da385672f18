"""Planted faults end in the watchdog's recovery: what was queued is answered, in full and right.

Three engines serve one ring. The first launches beyond its window, then has a step that passes
its deadline (both recovered in place), then loses its context to an illegal address; the second
has a step that does not end; the third is well.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="needs the CUDA bindings")

from blink_numba.bench.null_engine import expected_answer
from blink_numba.bench.resident import engine_config, random_prompts
from blink_numba.models import load_model
from blink_numba.runtime.process import EngineProcess, wait_for
from rdma import FrontEndPort, Handle, Request, ShmTransport
from ring.memory import RingMemory
from ring.states import Reason

SEATS, REQUESTS, TOKENS, PROMPT = 4, 32, 100, 20
VOCAB_SIZE = load_model("tiny").config.vocab_size
DEADLINE_S = 200.0

# faults of each engine, and what it says of them, in order; the last fault but of the last engine ends it
ENGINES = (
    ("launch,spin,wild", ("launching a graph failed with code 1", "passed its deadline", "CUDA gave up")),
    ("endless", ("passed its deadline",)),
    ("", ()),
)

pytestmark = pytest.mark.timeout(DEADLINE_S + 20.0, method="thread")


def start(faults: str, config, *, attach: bool) -> EngineProcess:
    """`EngineProcess.spawn` with faults."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "tests.gpu.faulty_engine", faults, "--report-fd", str(write_end)]
    command += ["--attach"] if attach else []
    child = subprocess.Popen(
        [*command, config.to_json()], pass_fds=(write_end,), stdin=subprocess.DEVNULL, start_new_session=True
    )
    os.close(write_end)
    process = EngineProcess(config, child, read_end)
    process.wait_ready(90.0)
    return process


def expected(prompt: np.ndarray, tokens: int) -> np.ndarray:
    answer = np.zeros(tokens, np.int64)
    expected_answer(int(prompt[-1]), len(prompt), answer, VOCAB_SIZE)
    return answer


class Run:
    """Serves one ring with one engine after the other until all requests have ended.

    `said` lists what each engine said went wrong.
    """

    def __init__(self, config) -> None:
        self._config = config
        self._number = 0
        self.said: list[list[str]] = [[]]
        self.process = start(ENGINES[0][0], config, attach=False)

    def serve(self, port: FrontEndPort, handles: list[Handle]) -> tuple[dict, dict]:
        """Tokens and reason of each request."""
        tokens = {handle: np.zeros(0, np.int32) for handle in handles}
        reasons: dict[Handle, Reason] = {}
        give_up = time.monotonic() + DEADLINE_S
        while len(reasons) < len(handles):
            assert time.monotonic() < give_up, f"{len(reasons)} requests ended; engines said {self.said}"
            for event in port.poll():
                tokens[event.handle] = np.append(tokens[event.handle], event.tokens)
                if event.reason:
                    reasons[event.handle] = event.reason
            self._listen()
            if not self.process.alive():
                self._replace()
            time.sleep(0.001)
        return tokens, reasons

    def _listen(self) -> None:
        failure = self.process.failure()
        if failure is not None and failure not in self.said[-1]:
            self.said[-1].append(failure)

    def _replace(self) -> None:
        assert wait_for(lambda: "new process must take over" in (self.process.failure() or ""), 5.0), (
            self.said
        )
        self._listen()
        self._number += 1
        assert self._number < len(ENGINES), self.said
        self.process.kill()
        self.process = start(ENGINES[self._number][0], self._config, attach=True)
        self.said.append([])


def test_what_was_queued_survives():
    config = dataclasses.replace(engine_config("tiny", SEATS, PROMPT + TOKENS), step_deadline_s=1.0)
    run = Run(config)
    try:
        port = FrontEndPort(ShmTransport.attach(config.ring_name))
        port.warm_up()
        prompts = random_prompts(REQUESTS, PROMPT, VOCAB_SIZE)
        handles = port.submit_many([Request(each, max_tokens=TOKENS, ignore_eos=True) for each in prompts])
        tokens, reasons = run.serve(port, handles)
        print("engines said", run.said)
        assert len(run.said) == len(ENGINES)
        for said, (_, faults) in zip(run.said, ENGINES, strict=True):
            for text in faults:
                assert any(text in each for each in said), (text, said)
        broken = [handle for handle in handles if reasons[handle] == Reason.ERROR]
        assert 4 <= len(broken) <= 4 * SEATS, "what is in service at a fault ends with an error"
        for handle, prompt in zip(handles, prompts, strict=True):
            np.testing.assert_array_equal(tokens[handle], expected(prompt, len(tokens[handle])))
            if handle not in broken:
                assert (reasons[handle], len(tokens[handle])) == (Reason.LENGTH, TOKENS)
        assert port.close() == 0
    finally:
        run.process.stop(5.0, drain=False)
    with pytest.raises(RuntimeError, match="no ring named"):
        RingMemory.attach(config.ring_name)
