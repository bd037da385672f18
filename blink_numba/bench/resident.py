"""Engines for measurements: started, driven through their ring, and gone afterwards."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from blink_numba.runtime import EngineConfig, EngineProcess, LocalEngine
from rdma import FrontEndPort, Handle, Request, ShmTransport

_numbers = itertools.count()
SLOTS = 256
STEP_DEADLINE_S = 20.0
PREFILL_TOKENS = 512  # of the largest prefill graph, where prefills are not what is measured


def engine_config(
    model: str, seats: int, length: int, *, backend: str = "cuda", launch: str = "faf",
    prefill_tokens: int = 2048, batch_invariant: bool = False,
) -> EngineConfig:  # fmt: skip
    """Configuration of an engine of random weights with room for `seats` requests of `length` tokens."""
    blocks = -(-(length + 1) // 16)
    return EngineConfig(
        model=model, backend=backend, dummy=model != "tiny", launch=launch,  # type: ignore[arg-type]
        ring_name=f"bench-{os.getpid()}-{next(_numbers)}", slots=SLOTS, max_seats=seats,
        max_model_len=16 * blocks, kv_tokens=16 * seats * (blocks + 1), prefill_tokens=prefill_tokens,
        batch_invariant=batch_invariant, step_deadline_s=STEP_DEADLINE_S,
    )  # fmt: skip


@contextlib.contextmanager
def engine(model: str, seats: int, length: int, backend: str = "cuda", launch: str = "faf",
           prefill_tokens: int = PREFILL_TOKENS, prepared: Any = None) -> Iterator[LocalEngine]:  # fmt: skip
    """An engine in this process for the block.

    Parameters
    ----------
    prepared : Backend, optional
        Runs it, instead of a backend made here.
    """
    config = engine_config(
        model, seats, length, backend=backend, launch=launch, prefill_tokens=prefill_tokens
    )
    running = LocalEngine(config, backend=prepared)
    try:
        yield running
    finally:
        running.stop(drain=False)


class SideBySide:
    """Engines in processes of their own, prepared at the same time and run one at a time. A context manager.

    Compiling its kernels is most of an engine's start, and takes a core each. Engines on the CPU,
    which share what they compile and need all cores for it, are prepared when their turn comes.

    Parameters
    ----------
    configs : mapping of str to EngineConfig
    modules : mapping of str to str
        What a process runs that is not to run ``blink_numba.runtime``.
    """

    def __init__(
        self, configs: Mapping[str, EngineConfig], modules: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._configs, self._modules = dict(configs), modules
        self._engines: dict[str, EngineProcess] = {}
        for name, config in configs.items():
            if config.backend == "cuda":
                self._spawn(name)

    def _spawn(self, name: str) -> None:
        self._engines[name] = EngineProcess.spawn(
            self._configs[name], hold=True, module=self._modules.get(name, "blink_numba.runtime")
        )

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[EngineProcess]:
        """The engine of this name for the block, once all are prepared; it can run only once.

        Raises
        ------
        EngineStartError
            One of them could not be prepared, or this one not started.
        RuntimeError
            It failed in the block.
        """
        if name not in self._engines:
            self._spawn(name)
        for engine in self._engines.values():
            if engine.held:
                engine.wait_prepared()
        running = self._engines[name]
        running.release()
        running.wait_ready()
        try:
            yield running
            if running.failure() is not None:
                raise RuntimeError(f"{name}: {running.failure()}")
        finally:
            running.stop(drain=False)

    def __enter__(self) -> SideBySide:
        return self

    def __exit__(self, *exception: object) -> None:
        for engine in self._engines.values():
            engine.stop(drain=False)


@contextlib.contextmanager
def port_of(running: LocalEngine) -> Iterator[FrontEndPort]:
    """A front end's port to a running engine for the block."""
    port = FrontEndPort(ShmTransport.attach(running.ring_name))
    port.warm_up()
    try:
        yield port
    finally:
        port.close()


def answer_all(
    port: FrontEndPort, prompts: Sequence[np.ndarray], tokens: int, deadline_s: float
) -> list[np.ndarray]:
    """Submit all prompts in one burst and wait for `tokens` tokens of each; the answers, int32.

    Raises
    ------
    RuntimeError
        A request was refused, ended early, or not in time.
    """
    requests = [Request(prompt, max_tokens=tokens, ignore_eos=True) for prompt in prompts]
    handles = port.submit_many(requests)
    for handle in handles:
        if not isinstance(handle, Handle):
            raise RuntimeError(f"a request was refused: {handle}")
    parts: dict[Any, list[np.ndarray]] = {handle: [] for handle in handles}
    give_up, left = time.monotonic() + deadline_s, len(handles)
    while left:
        events = port.poll()
        if not events:
            if time.monotonic() > give_up:
                raise RuntimeError(f"{left} of {len(handles)} requests not answered within {deadline_s:g} s")
            time.sleep(port.idle_interval())
        for event in events:
            parts[event.handle].append(event.tokens)
            if event.reason:
                left -= 1
                if event.usage != tokens:
                    raise RuntimeError(f"a request ended after {event.usage} tokens: {event.reason.name}")
    return [np.concatenate(parts[handle]) for handle in handles]


def random_prompts(count: int, length: int, vocab_size: int, seed: int = 0) -> list[np.ndarray]:
    """`count` prompts of `length` random tokens each, int32."""
    drawn = np.random.default_rng(seed).integers(0, vocab_size, (count, length))
    return list(drawn.astype(np.int32))
