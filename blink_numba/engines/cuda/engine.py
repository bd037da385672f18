"""The CUDA engine: a step of any shape as a sequence of kernels on a stream.

After the constructor nothing is allocated and no code is loaded, so every step can be captured
(`graphs.capture.GraphSet`) and launched beside a resident scheduler.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blink_numba.engines.cuda import attention, layers, sample
from blink_numba.engines.cuda._cuda import cuda
from blink_numba.engines.cuda.ahead import enqueue_finish_ahead
from blink_numba.engines.cuda.blas import CublasLt
from blink_numba.engines.cuda.buffers import Activations, KvCache, Rows, StepBuffer, rotary_tables
from blink_numba.engines.cuda.gemm import ADD_FLOAT32, BF16, FLOAT32
from blink_numba.engines.cuda.products import InvariantProducts, Products
from blink_numba.engines.cuda.weights import LayerWeights, load_weights
from blink_numba.engines.limits import EngineLimits
from blink_numba.models import Model, ModelConfig, ModelError
from graphs._cuda import new_stream
from graphs.grid import DECODE, shapes
from graphs.step_io import EngineSpec

MOST_ROWS = 65535  # blocks of a grid in y and z, in which some kernels have a step's rows
_SPLIT_BLOCKS = 8  # decode attention: blocks an SM that the split over keys aims at (of a warp or two)


class CudaEngine:
    """Llama-family forward, sampling included, in bf16 on the current device.

    Parameters
    ----------
    model : Model
        Dense models; see `load_weights` for synthetic ones.
    limits : EngineLimits
    batch_invariant : bool
        Use the own matrix product for every shape, so that a token's logits depend on its
        history alone, bit for bit: not on batch, seat, packing or chunking. Slower.
    host_io : bool
        Made for a scheduler on the CPU: see `StepBuffer`.
    ahead : bool
        That scheduler launches decode steps ahead.

    Attributes
    ----------
    spec : EngineSpec
    io : device int64[n]
        The step buffer (`graphs.step_io`); `host_io` is its pinned counterpart or None.
    batch_invariant : bool

    Raises
    ------
    ModelError
        A shape that the kernels do not serve.
    ValueError
        Limits that they do not serve.
    """

    def __init__(
        self, model: Model, limits: EngineLimits, *, batch_invariant: bool = False, host_io: bool = False,
        ahead: bool = False,
    ) -> None:  # fmt: skip
        config = model.config
        check_config(config)
        self.config = config
        self.spec = limits.spec(config)
        check_spec(self.spec)
        self.batch_invariant = batch_invariant
        self.weights = load_weights(model)
        self.cache = KvCache(config, self.spec)
        self._step = StepBuffer(self.spec, on_host=host_io, ahead=ahead)
        self.io, self.host_io = self._step.words, self._step.host
        self.activations = Activations(config, self.spec)
        self._cosines, self._sines = rotary_tables(config, self.spec.max_model_len)
        self._eos_ids = cuda.to_device(np.array(self.spec.eos_ids, np.int32).reshape(-1))
        self._epsilon = np.float32(config.rms_norm_eps)
        self._group = config.num_heads // config.num_kv_heads
        self._processors = int(cuda.get_current_device().MULTIPROCESSOR_COUNT)
        self._norm_threads = layers.norm_threads(config.hidden_size)
        self._rms_norm = layers.norm_kernel(config.hidden_size)
        self._last_tokens = layers.last_tokens_kernel(config.hidden_size)
        self._rope = layers.rope_kernel(config.head_dim, config.qkv_bias, config.qk_norm)
        self._products: Products = InvariantProducts() if batch_invariant else CublasLt()
        self._load()

    def _load(self) -> None:
        """Plan all products and run every shape once, on padding, so that all code is loaded."""
        stream = new_stream()
        cuda.synchronize()  # copies and clears above went to the legacy stream, which this one ignores
        weights = self.weights.layers
        for rows in sorted({*self.spec.decode_batches, *self.spec.prefill_tokens}):
            views = self.activations.rows(rows)
            for x, name, y, store in (
                (views.normed, "qkv", views.qkv, FLOAT32),
                (views.attended, "output", views.residual, ADD_FLOAT32),
                (views.normed, "gate_up", views.gate_up, BF16),
                (views.gated, "down", views.residual, ADD_FLOAT32),
            ):
                self._products.prepare(x, [getattr(layer, name) for layer in weights], y, store, stream)
        sampled = [self.activations.rows(rows).normed for rows in self.spec.decode_batches]
        for x in [*sampled, self.activations.sample_normed]:
            logits = self.activations.logits[: x.shape[0]]
            self._products.prepare(x, [self.weights.lm_head], logits, FLOAT32, stream)
        for kind, shape in shapes(self.spec):
            self.enqueue(kind, shape, stream)
        stream.synchronize()
        self._step.forget_steps()

    def enqueue(self, kind: int, shape: int, stream: Any) -> None:
        """Enqueue a step: from the step buffer's inputs to its tokens and the release of DONE.

        Parameters
        ----------
        kind, shape : int
            ``DECODE`` and a batch, or ``PREFILL`` and a number of tokens, of the grid in `spec`.
        stream
            A stream of `graphs._cuda.new_stream`; may be capturing.
        """
        self._step.enqueue_inputs(stream)
        rows = self.activations.rows(shape)
        if kind == DECODE:
            self._embed_decode(shape, rows, stream)
        else:
            self._embed_prefill(shape, rows, stream)
        for index, layer in enumerate(self.weights.layers):
            self._attention_block(kind, index, layer, rows, stream)
            self._feed_forward_block(layer, rows, stream)
        if kind == DECODE:
            self._norm(rows, self.weights.final_norm, stream)
            self._sample(rows.normed, rows.seat, rows.position, stream)
        else:
            self._sample_runs(rows, stream)
        self._step.enqueue_outputs(stream)
        if kind == DECODE and self._step.ahead:
            enqueue_finish_ahead(self._step, shape, self.activations.fault, stream)
            return
        finish = sample.finish_step if self.host_io is None else sample.finish_step_for_host
        finish[1, 32, stream](self._step.control, self.activations.fault)

    def _embed_decode(self, batch: int, rows: Rows, stream: Any) -> None:
        layers.embed_decode[batch, layers.EMBED_THREADS, stream](
            self._step.decode_rows, self._step.seat_token, self._step.seat_position, self.weights.embedding,
            self.spec.max_model_len, self.activations.fault, rows.seat, rows.position, rows.residual,
        )  # fmt: skip

    def _embed_prefill(self, tokens: int, rows: Rows, stream: Any) -> None:
        layers.embed_prefill[tokens, layers.EMBED_THREADS, stream](
            self._step.prefill_seat, self._step.prefill_token, self._step.prefill_position,
            self.weights.embedding, self.spec.max_model_len, self.activations.fault,
            rows.seat, rows.position, rows.residual,
        )  # fmt: skip

    def _norm(self, rows: Rows, weight: Any, stream: Any) -> None:
        grid = rows.residual.shape[0]
        self._rms_norm[grid, self._norm_threads, stream](rows.residual, weight, self._epsilon, rows.normed)

    def _attention_block(self, kind: int, index: int, layer: LayerWeights, rows: Rows, stream: Any) -> None:
        config, keys, values = self.config, self.cache.keys[index], self.cache.values[index]
        self._norm(rows, layer.input_norm, stream)
        self._products.multiply(rows.normed, layer.qkv, rows.qkv, FLOAT32, stream)
        heads = config.num_heads + 2 * config.num_kv_heads
        grid = (-(-heads // layers.ROPE_HEADS), rows.residual.shape[0])
        self._rope[grid, (32, layers.ROPE_HEADS), stream](
            rows.qkv, layer.bias, layer.q_norm, layer.k_norm, self._epsilon, self._cosines, self._sines,
            rows.seat, rows.position, self._step.block_table, self.spec.blocks_per_seat, rows.q, keys, values,
        )  # fmt: skip
        if kind == DECODE:
            self._attend_decode(keys, values, rows, stream)
        else:
            self._attend_prefill(keys, values, rows, stream)
        self._products.multiply(rows.attended, layer.output, rows.residual, ADD_FLOAT32, stream)

    def _attend_decode(self, keys: Any, values: Any, rows: Rows, stream: Any) -> None:
        work, batch, kv_heads = self.activations, rows.residual.shape[0], self.config.num_kv_heads
        chunks = work.partial.shape[2]
        splits = max(min(chunks, -(-_SPLIT_BLOCKS * self._processors // (batch * kv_heads))), 1)
        kernel = attention.decode_kernel(self.config.head_dim, self._group)
        threads = 32 * -(-self._group // 16)
        kernel[(splits, kv_heads, batch), threads, stream](
            rows.q_pairs, keys, values, self._step.block_table, self.spec.blocks_per_seat,
            rows.seat, rows.position, work.partial, work.partial_stats, work.arrivals, rows.attended,
        )  # fmt: skip

    def _attend_prefill(self, keys: Any, values: Any, rows: Rows, stream: Any) -> None:
        tokens = rows.residual.shape[0]
        tiles = attention.prefill_tiles(tokens, self.spec.prefill_sequences, self._group)
        kernel = attention.prefill_kernel(self.config.head_dim, self._group)
        kernel[(tiles, self.config.num_kv_heads), 32 * attention.PREFILL_WARPS, stream](
            rows.q_pairs, keys, values, self._step.block_table, self.spec.blocks_per_seat,
            self._step.run_seat, self._step.run_start, rows.position, rows.attended,
        )  # fmt: skip

    def _feed_forward_block(self, layer: LayerWeights, rows: Rows, stream: Any) -> None:
        self._norm(rows, layer.post_norm, stream)
        self._products.multiply(rows.normed, layer.gate_up, rows.gate_up, BF16, stream)
        pairs = rows.gated_pairs.shape[1]
        grid = (-(-pairs // layers.GATE_THREADS), rows.residual.shape[0])
        layers.gate[grid, layers.GATE_THREADS, stream](rows.gate_up_pairs, rows.gated_pairs)
        self._products.multiply(rows.gated, layer.down, rows.residual, ADD_FLOAT32, stream)

    def _sample_runs(self, rows: Rows, stream: Any) -> None:
        work = self.activations
        self._last_tokens[self.spec.prefill_sequences, self._norm_threads, stream](
            self._step.run_seat, self._step.run_start, self._step.run_samples, rows.position,
            rows.residual, self.weights.final_norm, self._epsilon,
            work.sample_seat, work.sample_position, work.sample_normed,
        )  # fmt: skip
        self._sample(work.sample_normed, work.sample_seat, work.sample_position, stream)

    def _sample(self, normed: Any, seat: Any, position: Any, stream: Any) -> None:
        count = normed.shape[0]
        logits = self.activations.logits[:count]
        self._products.multiply(normed, self.weights.lm_head, logits, FLOAT32, stream)
        sample.sample[count, sample.THREADS, stream](
            logits,
            seat,
            position,
            self._step.sampling,
            self._eos_ids,
            self.activations.fault,
            self._step.step_control,
            self._step.out_token,
            self._step.out_logprobs,
        )

    def close(self) -> None:
        """Free library handles; memory goes with the object. No captured step may run again."""
        self._products.close()


_ON_CPU = "the CPU engine may serve it (--backend cpu)"


def check_config(config: ModelConfig) -> None:
    """Raise `ModelError` unless the kernels serve a model of this shape."""
    group = config.num_heads // config.num_kv_heads
    if config.num_experts:
        raise ModelError("the CUDA engine computes dense models only; this one has routed experts")
    if config.head_dim not in attention.HEAD_DIMS:
        served = ", ".join(map(str, attention.HEAD_DIMS))
        raise ModelError(
            f"the CUDA engine serves head_dim {served}; the model has {config.head_dim}: {_ON_CPU}"
        )
    if group > 16 * attention.PREFILL_WARPS:
        raise ModelError(
            f"the CUDA engine serves up to 64 query heads a key head, the model has {group}: {_ON_CPU}"
        )
    for name in ("hidden_size", "intermediate_size"):
        if getattr(config, name) % 8:
            raise ModelError(
                f"the CUDA engine needs {name} divisible by 8, not {getattr(config, name)}: {_ON_CPU}"
            )


def check_spec(spec: EngineSpec) -> None:
    """Raise `ValueError` unless a step of each shape fits a launch and the sampling kernel."""
    for name, rows in (("seats", spec.seats), ("prefill_tokens", spec.prefill_tokens[-1])):
        if rows > MOST_ROWS:
            raise ValueError(f"the CUDA engine has up to {MOST_ROWS} rows a step, {name} is {rows}: lower it")
    if len(spec.eos_ids) > sample.THREADS:
        raise ValueError(
            f"the CUDA engine hides up to {sample.THREADS} end-of-sequence ids, the model has "
            f"{len(spec.eos_ids)}: keep those in eos_token_id that end an answer"
        )
