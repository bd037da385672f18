"""How much of a GPU's memory goes to the KV cache. Arithmetic alone: no GPU is asked here.

`gpu_memory_utilization` means what it means in vLLM: the part of the GPU's *total* memory that
weights, activations and KV cache may take together. The cache gets what the others leave, but
no more than all seats at full length could fill.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from blink_numba.models import ModelConfig

DEFAULT_UTILIZATION = 0.9
GIB = 1 << 30
BF16, FLOAT32 = 2, 4
OTHER_BYTES = 2 * GIB  # code of kernels and libraries, graphs, workspaces: held back, not measured
CHUNK = 128  # of `blink_numba.engines.cuda.attention_chunk`, which needs the CUDA target


@dataclass(frozen=True)
class Workload:
    """What an engine is sized for, as far as its memory depends on it.

    Attributes
    ----------
    seats, prefill_tokens, prefill_sequences, block_size : int
        As in `blink_numba.engines.limits.EngineLimits`.
    max_model_len : int
        Most tokens of a request.
    """

    seats: int
    prefill_tokens: int
    prefill_sequences: int
    block_size: int
    max_model_len: int


def weight_bytes(config: ModelConfig) -> int:
    """Bytes of the weights, in bf16."""
    return BF16 * sum(math.prod(shape) for shape in config.expected_tensors().values())


def kv_token_bytes(config: ModelConfig) -> int:
    """Bytes of a token's keys and values in all layers, in bf16."""
    return 2 * BF16 * config.num_layers * config.num_kv_heads * config.head_dim


def activation_bytes(config: ModelConfig, workload: Workload) -> int:
    """Bytes of what a step of any shape works in: rows, logits, partial attention, rotary tables."""
    rows = max(workload.seats, workload.prefill_tokens)
    heads = config.num_heads * config.head_dim
    kv_heads = config.num_kv_heads * config.head_dim
    row = FLOAT32 * (config.hidden_size + heads + 2 * kv_heads)  # residual, Q with K and V
    row += BF16 * (config.hidden_size + 2 * heads + 3 * config.intermediate_size)
    sampled = max(workload.seats, workload.prefill_sequences)
    chunks = -(-workload.max_model_len // CHUNK)
    partial = workload.seats * config.num_heads * chunks * (config.head_dim + 2)
    rotary = workload.max_model_len * config.head_dim
    return rows * row + FLOAT32 * (sampled * config.vocab_size + partial + rotary)


def kv_tokens(config: ModelConfig, workload: Workload, *, total: int, free: int, utilization: float) -> int:
    """Tokens of the KV cache, whole blocks.

    Parameters
    ----------
    total, free : int
        The GPU's memory, in bytes; `free` before anything of this engine is there.
    utilization : float
        In (0, 1].

    Raises
    ------
    ValueError
        Nothing is left for a cache; the message says what takes how much.
    """
    if not 0.0 < utilization <= 1.0:
        raise ValueError(f"gpu_memory_utilization={utilization} must be above 0 and at most 1")
    budget = min(int(total * utilization), free)
    weights, rest = weight_bytes(config), activation_bytes(config, workload) + OTHER_BYTES
    block = kv_token_bytes(config) * workload.block_size
    blocks = (budget - weights - rest) // block
    if blocks < 1:
        limit = (
            f"gpu_memory_utilization={utilization:g} of the GPU's {_gib(total)}"
            if free > budget
            else f"the {_gib(free)} that are free of the GPU's {_gib(total)}"
        )
        needs = f"the weights alone take {_gib(weights)}"
        if weights <= budget:
            needs = f"the weights take {_gib(weights)} and a step {_gib(rest)}"
        raise ValueError(
            f"no memory is left for the KV cache: {needs}, and {limit} are {_gib(budget)}; "
            + ("raise gpu_memory_utilization, " if free > budget else "end what else uses the GPU, ")
            + "choose a smaller model or fewer and shorter requests (max_num_seqs, max_model_len)"
        )
    most = workload.seats * -(-workload.max_model_len // workload.block_size)
    return min(blocks, most) * workload.block_size


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
