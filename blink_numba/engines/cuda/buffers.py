"""Everything a step works in, allocated once: step buffer, KV cache, activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from blink_numba.engines.cuda._cuda import cuda
from blink_numba.engines.cuda.attention_chunk import CHUNK
from blink_numba.models import ModelConfig, rope_frequencies
from graphs._cuda import check, driver
from graphs.step_io import EngineSpec, format_step, sections_of, step_words
from ring.sections import layout


def device_zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    """A zeroed device array."""
    array = cuda.device_array(shape, dtype)
    pointer = int(array.__cuda_array_interface__["data"][0])
    check(driver.cuMemsetD8(pointer, 0, int(array.nbytes)), "clearing device memory")
    return array


class StepBuffer:
    """The step buffer on the device, and what feeds it when the scheduler is on the host.

    Parameters
    ----------
    spec : EngineSpec
    on_host : bool
        The scheduler runs on the CPU: it reads and writes `host`, pinned; each step begins by
        copying that to the device and ends by copying the sampled tokens back.
    ahead : bool
        That scheduler launches decode steps ahead (`graphs.ahead`): `enqueue_finish_ahead` ends them.

    Attributes
    ----------
    words : device int64[n]
    host : int64[n] ndarray or None
    """

    def __init__(self, spec: EngineSpec, *, on_host: bool, ahead: bool = False) -> None:
        if ahead and not on_host:
            raise ValueError("only a scheduler on the host launches steps ahead")
        self.ahead = ahead
        formatted = np.zeros(step_words(spec), np.int64)
        format_step(formatted, spec)
        self.words = cuda.to_device(formatted)
        self.host: np.ndarray | None = None
        launcher_words = self.words  # whoever launches reads DONE where it wrote TICKET
        if on_host:
            pinned: np.ndarray = cuda.pinned_array(len(formatted), np.int64)
            pinned[:] = formatted
            self.host, launcher_words = pinned, _device_view(pinned)
        sections = sections_of(spec)
        starts, _ = layout(sections)
        self._extent = {each.name: (start, each.words) for start, each in zip(starts, sections, strict=True)}
        for name in self._extent:
            setattr(self, name, self._section(self.words, name))
        self.step_control = self._section(self.words, "control")  # a step's own: its TICKET
        self.control = self._section(launcher_words, "control")
        self._launcher_words = launcher_words

    def __getattr__(self, name: str) -> Any:  # sections, set in the constructor
        raise AttributeError(f"the step buffer has no section {name}")

    def _section(self, words: Any, name: str) -> Any:
        return words[slice(*self._bounds(name))]

    def in_host_memory(self, name: str) -> Any:
        """A section where the scheduler has it, for kernels that write there."""
        return self._section(self._launcher_words, name)

    def forget_steps(self) -> None:
        """Number steps from the beginning; after those that loaded the code, with none running."""
        if self.host is not None:
            self.host[slice(*self._bounds("control"))] = 0

    def _bounds(self, name: str) -> tuple[int, int]:
        start, count = self._extent[name]
        return start, start + count

    def enqueue_inputs(self, stream: Any) -> None:
        """Bring the host's inputs to the device, if the scheduler is there."""
        if self.host is not None:
            inputs = 8 * self._extent["out_token"][0]
            outcome = driver.cuMemcpyHtoDAsync(
                _pointer(self.words), self.host.ctypes.data, inputs, int(stream)
            )
            check(outcome, "copying a step's inputs to the device")

    def enqueue_outputs(self, stream: Any) -> None:
        """Bring the sampled tokens and their log-probabilities to the host, if the scheduler is there."""
        if self.host is not None:
            start, end = 8 * self._bounds("out_token")[0], 8 * self._bounds("out_logprobs")[1]
            outcome = driver.cuMemcpyDtoHAsync(
                self.host.ctypes.data + start, _pointer(self.words) + start, end - start, int(stream)
            )
            check(outcome, "copying a step's tokens to the host")


@dataclass
class _Exported:
    """A pinned host array as a device array (one address space serves both)."""

    __cuda_array_interface__: dict


def _device_view(array: np.ndarray) -> Any:
    interface = {
        "shape": array.shape,
        "typestr": array.dtype.str,
        "data": (array.ctypes.data, False),
        "strides": None,
        "version": 3,
    }
    return cuda.as_cuda_array(_Exported(interface), sync=False)


def _pointer(array: Any) -> int:
    return int(array.__cuda_array_interface__["data"][0])


class KvCache:
    """Keys and values of all layers: bf16 as uint16[blocks, kv_heads, block_size, head_dim] each."""

    def __init__(self, config: ModelConfig, spec: EngineSpec) -> None:
        shape = (spec.blocks, config.num_kv_heads, spec.block_size, config.head_dim)
        self.keys = [device_zeros(shape, np.uint16) for _ in range(config.num_layers)]
        self.values = [device_zeros(shape, np.uint16) for _ in range(config.num_layers)]

    def nbytes(self) -> int:
        """Device memory it takes."""
        return sum(int(array.nbytes) for array in self.keys + self.values)


@dataclass
class Rows:
    """Activations of a step of so many rows: views of the shared buffers.

    `residual` float32[rows, hidden]; `normed` [rows, hidden], `q`, `attended` [rows, heads *
    head_dim], `gate_up` [rows, 2 i], `gated` [rows, i] bf16 as uint16, `…_pairs` the same as
    uint32; `qkv` float32[rows, (heads + 2 kv_heads) * head_dim]; `seat`, `position` int32[rows].
    """

    seat: Any
    position: Any
    residual: Any
    normed: Any
    qkv: Any
    q: Any
    q_pairs: Any
    attended: Any
    gate_up: Any
    gate_up_pairs: Any
    gated: Any
    gated_pairs: Any


class Activations:
    """Buffers for the largest step; `rows(n)` are the views of a step of n rows."""

    def __init__(self, config: ModelConfig, spec: EngineSpec) -> None:
        most = max(spec.seats, spec.prefill_tokens[-1])
        width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        self._seat = cuda.to_device(np.full(most, -1, np.int32))
        self._position = device_zeros((most,), np.int32)
        self._residual = device_zeros((most, hidden), np.float32)
        self._normed = device_zeros((most, hidden), np.uint16)
        self._qkv = device_zeros((most, width + 2 * kv_width), np.float32)
        self._q = device_zeros((most, width), np.uint16)
        self._attended = device_zeros((most, width), np.uint16)
        self._gate_up = device_zeros((most, 2 * inner), np.uint16)
        self._gated = device_zeros((most, inner), np.uint16)
        self._views: dict[int, Rows] = {}

        sampled = max(spec.seats, spec.prefill_sequences)
        self.sample_seat = cuda.to_device(np.full(spec.prefill_sequences, -1, np.int32))
        self.sample_position = device_zeros((spec.prefill_sequences,), np.int32)
        self.sample_normed = device_zeros((spec.prefill_sequences, hidden), np.uint16)
        self.logits = device_zeros((sampled, spec.vocab_size), np.float32)

        chunks = -(-spec.max_model_len // CHUNK)
        heads = config.num_heads
        self.partial = device_zeros((spec.seats, heads, chunks, config.head_dim), np.float32)
        self.partial_stats = device_zeros((spec.seats, heads, chunks, 2), np.float32)
        self.arrivals = device_zeros((spec.seats, config.num_kv_heads), np.int32)
        self.fault = device_zeros((1,), np.int64)

    def rows(self, count: int) -> Rows:
        """Views of the first `count` rows; the same objects each time."""
        if count not in self._views:
            q, gate_up, gated = self._q[:count], self._gate_up[:count], self._gated[:count]
            self._views[count] = Rows(
                self._seat[:count],
                self._position[:count],
                self._residual[:count],
                self._normed[:count],
                self._qkv[:count],
                q,
                q.view(np.uint32),
                self._attended[:count],
                gate_up,
                gate_up.view(np.uint32),
                gated,
                gated.view(np.uint32),
            )
        return self._views[count]


def rotary_tables(config: ModelConfig, positions: int) -> tuple[Any, Any]:
    """Cosines and sines on the device: float32[positions, head_dim / 2] each, computed in float64."""
    angles = np.outer(np.arange(positions, dtype=np.float64), rope_frequencies(config))
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return cuda.to_device(cosines), cuda.to_device(sines)
