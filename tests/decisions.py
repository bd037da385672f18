"""A scenario whose decisions depend on nothing but the scheduler: the same on every target.

All requests are there before the scheduler starts, and ends come by length, so neither time nor
the engine's tokens matter. ``python -m tests.decisions > tests/gpu/data/decisions.json`` writes
down what the CPU decides.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

from blink_numba.runtime import EngineConfig
from rdma import FrontEndPort, Handle, Request, ShmTransport
from ring import layout as at
from ring.memory import RingMemory
from ring.recorder import Entry, Event, entries

DEADLINE_S = 60.0
# longer prompts than a prefill holds, more requests than seats, a cache that is too small for all
LENGTHS = [(5, 40), (70, 9), (1, 120), (33, 30), (150, 60), (16, 16), (17, 90), (64, 1), (90, 33), (12, 200)]
_OF_THE_STRATEGY = (Event.WINDOW, Event.RETRY, Event.STOP)


def scenario_config(backend: str, launch: str = "faf") -> EngineConfig:
    """Four seats, blocks for little more than one full request, prefills of 64 tokens."""
    return EngineConfig(
        model="tiny", backend=backend, launch=launch, ring_name=f"decisions-{os.getpid()}-{launch}",  # type: ignore[arg-type]
        slots=32, max_seats=4, max_model_len=256, kv_tokens=288, prefill_tokens=64, batch_invariant=True,
        step_deadline_s=20.0, threads=1,
    )  # fmt: skip


def scenario_requests() -> list[Request]:
    """Its requests, in the order of their arrival."""
    random = np.random.default_rng(8)
    return [
        Request(random.integers(0, 256, prompt).astype(np.int32), max_tokens=tokens, ignore_eos=True)
        for prompt, tokens in LENGTHS
    ]


def run_scenario(backend: Any, config: EngineConfig) -> dict[str, Any]:
    """Run it on a prepared backend, which is closed.

    Returns
    -------
    dict
        ``decisions``: event name and arguments of each flight-recorder entry, in order, without
        those that differ by launch strategy; ``answers``: each request's tokens.
    """
    geometry = config.geometry(backend.spec.max_model_len)
    spec = backend.spec
    with RingMemory.create(
        config.ring_name, geometry, max_model_len=spec.max_model_len, vocab_size=spec.vocab_size
    ) as ring:
        backend.new_state(geometry, at.HOST_PLACEMENT)
        port = FrontEndPort(ShmTransport.attach(config.ring_name))
        port.warm_up()
        handles = port.submit_many(scenario_requests())
        assert all(isinstance(handle, Handle) for handle in handles), handles
        backend.start(ring.words, ring.view)
        answers = collect(port, handles)
        ring.view.command[at.C_STOP] = at.STOP
        assert backend.join(20.0), "the scheduler did not stop"
        decisions = [
            _decision(entry.decision)
            for entry in entries(ring.view.flight)
            if entry.event not in _OF_THE_STRATEGY
        ]
        port.close()
        backend.close()
    return {"decisions": decisions, "answers": answers}


def _decision(entry: Entry) -> list[Any]:
    """Name and arguments; without the blocks that a preempted seat held.

    When blocks run out, which of the seats gets the last one is a race between lanes.
    """
    count = 3 if entry.event == Event.PREEMPT else 4
    return [entry.event.name, *entry.arguments[:count]]


def collect(port: FrontEndPort, handles: list) -> list[list[int]]:
    answers: dict[Handle, list[int]] = {handle: [] for handle in handles}
    give_up, left = time.monotonic() + DEADLINE_S, len(handles)
    while left:
        assert time.monotonic() < give_up, f"{left} requests were not answered"
        for event in port.poll():
            answers[event.handle] += event.tokens.tolist()
            left -= bool(event.reason)
        time.sleep(0.0005)
    return [answers[handle] for handle in handles]


def main() -> None:
    """Write the CPU's decisions to standard output."""
    from blink_numba.runtime.local import make_backend

    config = scenario_config("cpu")
    found = run_scenario(make_backend(config, lambda line: print(line, file=sys.stderr)), config)
    json.dump(found["decisions"], sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main()
