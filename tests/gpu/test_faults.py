"""Planted faults end in the watchdog's recovery: what was queued is answered, in full and right."""

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
from rdma import FrontEndPort, Request, ShmTransport
from ring.memory import RingMemory
from ring.states import Reason

SEATS, REQUESTS, TOKENS, PROMPT = 4, 12, 100, 20
VOCAB_SIZE = load_model("tiny").config.vocab_size


def start(fault: str, config, *, attach: bool = False) -> EngineProcess:
    """`EngineProcess.spawn` with a fault."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "tests.gpu.faulty_engine", fault, "--report-fd", str(write_end)]
    command += ["--attach"] if attach else []
    child = subprocess.Popen(
        [*command, config.to_json()], pass_fds=(write_end,), stdin=subprocess.DEVNULL, start_new_session=True
    )
    os.close(write_end)
    process = EngineProcess(config, child, read_end)
    process.wait_ready(90.0)
    return process


def expected(prompt: np.ndarray) -> np.ndarray:
    answer = np.zeros(TOKENS, np.int64)
    expected_answer(int(prompt[-1]), len(prompt), answer, VOCAB_SIZE)
    return answer


def assert_said(process: EngineProcess, text: str) -> None:
    assert wait_for(lambda: text in (process.failure() or ""), 5.0), process.failure()


# fault: (what the engine says of it, whether a new process must take over)
OUTCOMES = {
    "spin": ("passed its deadline", False),
    "launch": ("launching a graph failed with code 1", False),
    "endless": ("passed its deadline", True),
    "wild": ("new process must take over", True),
}


@pytest.mark.parametrize("fault", OUTCOMES)
def test_what_was_queued_survives(fault):
    says, replaced = OUTCOMES[fault]
    config = dataclasses.replace(engine_config("tiny", SEATS, PROMPT + TOKENS), step_deadline_s=1.0)
    process = start(fault, config)
    try:
        port = FrontEndPort(ShmTransport.attach(config.ring_name))
        port.warm_up()
        prompts = random_prompts(REQUESTS, PROMPT, VOCAB_SIZE)
        requests = [Request(prompt, max_tokens=TOKENS, ignore_eos=True) for prompt in prompts]
        handles = port.submit_many(requests)
        answers, reasons = {handle: np.zeros(0, np.int32) for handle in handles}, {}
        give_up = time.monotonic() + 80.0
        while len(reasons) < REQUESTS:
            assert time.monotonic() < give_up, f"{len(reasons)} of {REQUESTS} ended; {process.failure()}"
            if not process.alive():
                assert replaced, process.failure()
                assert_said(process, says)
                process.kill()
                process = start("none", config, attach=True)
            for event in port.poll():
                answers[event.handle] = np.append(answers[event.handle], event.tokens)
                if event.reason:
                    reasons[event.handle] = event.reason
            time.sleep(0.001)
        if not replaced:
            assert_said(process, says)
        broken = [handle for handle in handles if reasons[handle] == Reason.ERROR]
        assert 1 <= len(broken) <= SEATS, "what was in service ends with an error"
        for handle, prompt in zip(handles, prompts, strict=True):
            right = expected(prompt)[: len(answers[handle])]
            np.testing.assert_array_equal(answers[handle], right)
            if handle not in broken:
                assert reasons[handle] == Reason.LENGTH
                assert len(answers[handle]) == TOKENS
        assert port.close() == 0
    finally:
        process.stop(5.0, drain=False)
    with pytest.raises(RuntimeError, match="no ring named"):
        RingMemory.attach(config.ring_name)
