"""Hundreds of thousands of steps, every token checked: nothing is lost, doubled or mixed up.

The engine computes nothing (`null_engine`): each token is a function of the one before and its
position, so the client knows every answer beforehand, and the launches come as fast as the
strategy can. Windows close, executables alternate, slots, seats, blocks and the token log go
round many times.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from blink_numba.bench.report import Row
from blink_numba.bench.resident import engine_config, port_of
from rdma import FrontEndPort, Handle, Request
from ring import layout as at

SEATS, IN_FLIGHT = 64, 128
PROMPT, TOKENS = 24, (64, 256)  # tokens of a prompt; fewest and most of an answer
MODEL = "tiny"  # for its vocabulary alone


def run(steps: int = 300_000, launch: str = "faf", deadline_s: float = 150.0) -> list[Row]:
    """Tokens lost or wrong over so many steps of a null engine on a GPU.

    Parameters
    ----------
    launch : str
        Launch strategy.
    deadline_s : float
        The bench fails if the steps take longer.
    """
    from blink_numba.bench.null_engine import NullBackend, NullHostBackend, expected_answer
    from blink_numba.models import load_model
    from blink_numba.runtime import LocalEngine
    from scheduler.policy import named_policy

    config = engine_config(MODEL, SEATS, PROMPT + TOKENS[1], launch=launch)
    kind = NullHostBackend if launch.startswith("host") else NullBackend
    backend = kind(load_model(MODEL), config, named_policy("fcfs"), lambda line: None)
    with LocalEngine(config, backend=backend) as running, port_of(running) as port:
        status, vocab_size = running.ring.view.status, running.spec.vocab_size

        def expect(request: Request) -> np.ndarray:
            answer = np.zeros(request.max_tokens, np.int64)
            expected_answer(int(request.prompt[-1]), len(request.prompt), answer, vocab_size)
            return answer

        began = time.perf_counter()
        checked = check_answers(port, expect, lambda: int(status[at.S_STEPS]), steps, vocab_size, deadline_s)
        seconds = time.perf_counter() - began
        if running.failure() is not None:
            raise RuntimeError(running.failure())
        counts = {
            "steps": int(status[at.S_STEPS]), "windows": int(status[at.S_WINDOWS]),
            "launch_retries": int(status[at.S_RETRIES]), "finished": int(status[at.S_FINISHED]),
            "blocks_leaked": running.spec.blocks - int(status[at.S_BLOCKS_FREE]),
        }  # fmt: skip
    return [
        Row("endurance/lost_tokens", checked.lost, "count", 0, "lower", tokens=checked.tokens,
            requests=checked.requests, seconds=seconds, launch=launch, **counts),
        Row("endurance/blocks_leaked", counts["blocks_leaked"], "count", 0, "lower"),
        Row("endurance/steps", counts["steps"], "count", steps, "higher"),
        Row("endurance/steps_s", counts["steps"] / seconds, "steps/s"),
        Row("endurance/launch_retries", counts["launch_retries"], "count", better="lower"),
    ]  # fmt: skip


@dataclass
class Checked:
    """What was compared: requests and tokens, and tokens that were missing, wrong or too many."""

    requests: int = 0
    tokens: int = 0
    lost: int = 0
    examples: list[str] = field(default_factory=list)

    def compare(self, answer: np.ndarray, expected: np.ndarray, reason: str) -> None:
        """Count one answer."""
        common = min(len(answer), len(expected))
        wrong = int(np.count_nonzero(answer[:common] != expected[:common])) + abs(len(answer) - len(expected))
        self.requests += 1
        self.tokens += len(expected)
        self.lost += wrong
        if wrong and len(self.examples) < 5:
            self.examples.append(f"{reason}: {wrong} of {len(expected)} tokens")


def check_answers(port: FrontEndPort, expect, steps_done, steps: int, vocab_size: int, deadline_s: float,
                  in_flight: int = IN_FLIGHT) -> Checked:  # fmt: skip
    """Keep requests of random lengths in flight until so many steps are done; check every answer.

    Parameters
    ----------
    expect : callable
        The answer to a request, int64[max_tokens].
    steps_done : callable
        Steps so far.

    Raises
    ------
    RuntimeError
        The steps were not done, or the last answers not there, in time.
    """
    random = np.random.default_rng(5)
    waiting: dict[Handle, tuple[np.ndarray, list[np.ndarray]]] = {}
    checked = Checked()
    give_up = time.monotonic() + deadline_s
    more = True
    while more or waiting:
        if time.monotonic() > give_up:
            raise RuntimeError(f"{steps_done()} of {steps} steps were done within {deadline_s:g} s")
        more = more and steps_done() < steps
        if more and len(waiting) < in_flight:
            _submit(port, expect, random, vocab_size, waiting, in_flight - len(waiting))
        events = port.poll()
        for event in events:
            waiting[event.handle][1].append(event.tokens)
            if event.reason:
                expected, parts = waiting.pop(event.handle)
                checked.compare(np.concatenate(parts), expected, event.reason.name)
        if not events:
            time.sleep(port.idle_interval())
    return checked


def _submit(port: FrontEndPort, expect, random, vocab_size: int, waiting: dict, count: int) -> None:
    prompts = random.integers(0, vocab_size, (count, PROMPT)).astype(np.int32)
    lengths = random.integers(*TOKENS, count)
    requests = [
        Request(prompt, max_tokens=int(length), ignore_eos=True)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    for request, outcome in zip(requests, port.submit_many(requests), strict=True):
        if not isinstance(outcome, Handle):
            raise RuntimeError(f"a request was refused: {outcome}")
        waiting[outcome] = (expect(request), [])
