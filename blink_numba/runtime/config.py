"""What an engine is started with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

from ring.layout import MAX_LOGPROBS, RingGeometry

LaunchStrategy = Literal["faf", "tail", "while", "host", "host-pipelined"]
LAUNCHES: tuple[str, ...] = get_args(LaunchStrategy)


@dataclass(frozen=True)
class EngineConfig:
    """Configuration of an engine and its ring.

    Attributes
    ----------
    model : str
        A model's name or path (`blink_numba.models.load_model`).
    backend : {"auto", "cpu", "cuda"}
        ``auto`` takes the GPU where one works.
    ring_name : str
        Name of the ring's file in shared memory; front ends attach by it.
    slots, front_ends : int
        Requests in flight at most; front ends that may attach.
    arena_tokens : int, optional
        Prompt and answer tokens in flight; None for a size that goes with the slots.
    max_seats : int, optional
        Requests in service at once; None for the backend's default.
    max_model_len : int, optional
        Most tokens of a request; None for what model and cache allow.
    kv_tokens : int, optional
        Tokens the KV cache holds; None for the backend's default.
    gpu_memory_utilization : float, optional
        Part of the GPU's total memory that weights, activations and KV cache may take together,
        where `kv_tokens` is not given; None for 0.9. Of no use on the CPU, which says so.
    threads : int, optional
        Engine threads of the CPU backend; None for one a core, less what the scheduler needs.
    policy : str
        Scheduling policy.
    preload : tuple of str
        Policies compiled beside it, so that the scheduler swaps to them without standing still.
    launch : {"faf", "tail", "while", "host", "host-pipelined"}
        Launch strategy of the CUDA backend.
    dummy : bool
        Random weights of the model's shape.
    batch_invariant : bool
        CUDA: one reduction order for every shape, so answers do not depend on the batch.
    step_deadline_s : float
        A step that takes longer is a fault. Must exceed the longest prefill.
    """

    model: str = "smollm2"
    backend: Literal["auto", "cpu", "cuda"] = "auto"
    ring_name: str = "default"
    slots: int = 1024
    front_ends: int = 1
    arena_tokens: int | None = None
    max_seats: int | None = None
    max_model_len: int | None = None
    kv_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    prefill_tokens: int | None = None
    block_size: int = 16
    threads: int | None = None
    policy: str = "fcfs"
    preload: tuple[str, ...] = ()
    launch: LaunchStrategy = "faf"
    dummy: bool = False
    batch_invariant: bool = False
    step_deadline_s: float = 60.0

    def geometry(self, max_model_len: int) -> RingGeometry:
        """The ring's sizes.

        The default arena holds 256 tokens a slot, and for each front end two full contexts or one
        with all the log-probabilities that can be asked for.
        """
        arena = self.arena_tokens
        if arena is None:
            longest = (4 + 2 * MAX_LOGPROBS) * max_model_len
            arena = max(self.slots * 256, self.front_ends * longest, RingGeometry.arena_tokens)
        return RingGeometry(slots=self.slots, front_ends=self.front_ends, arena_tokens=arena)

    def to_json(self) -> str:
        """For the engine's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EngineConfig:
        """Inverse of `to_json`; unknown keys are an error."""
        given = json.loads(text)
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise ValueError(f"unknown engine options: {', '.join(unknown)}")
        given["preload"] = tuple(given.get("preload", ()))  # a list in JSON
        return cls(**given)
