"""Every kernel of the CUDA engine compiles for sm_90 on a machine without a GPU, as it should run there."""

from __future__ import annotations

import pytest

pytest.importorskip("numba.cuda.dispatcher", reason="needs the numba-cuda target")

from numba.core import types as t

from blink_numba.engines.cuda import ahead, attention, gemm, layers, sample, weights
from tests.cuda_compile import compile_kernel, resources

BF16, WORDS, FLOATS = t.uint16[:, ::1], t.uint32[:, ::1], t.float32[:, ::1]
VECTOR, INT32, INT64, CACHE = t.float32[::1], t.int32[::1], t.int64[::1], t.uint16[:, :, :, ::1]
PARTIAL = t.float32[:, :, :, ::1]

EMBED = (INT64, INT64, INT64, BF16, t.int64, INT64, INT32, INT32, FLOATS)
ROPE = (
    FLOATS,
    VECTOR,
    VECTOR,
    VECTOR,
    t.float32,
    FLOATS,
    FLOATS,
    INT32,
    INT32,
    INT64,
    t.int64,
    BF16,
    CACHE,
    CACHE,
)
DECODE = (WORDS, CACHE, CACHE, INT64, t.int64, INT32, INT32, PARTIAL, PARTIAL, t.int32[:, ::1], BF16)
PREFILL = (WORDS, CACHE, CACHE, INT64, t.int64, INT64, INT64, INT32, BF16)

KERNELS = {
    "embed_decode": (layers.embed_decode, EMBED),
    "embed_prefill": (layers.embed_prefill, EMBED),
    "rms_norm": (layers.norm_kernel(5120), (FLOATS, VECTOR, t.float32, BF16)),
    "last_tokens": (
        layers.last_tokens_kernel(576),
        (INT64, INT64, INT64, INT32, FLOATS, VECTOR, t.float32, INT32, INT32, BF16),
    ),
    "rope_llama": (layers.rope_kernel(64, False, False), ROPE),
    "rope_qwen2": (layers.rope_kernel(128, True, False), ROPE),
    "rope_qwen3": (layers.rope_kernel(128, False, True), ROPE),
    "gate": (layers.gate, (WORDS, WORDS)),
    "sample": (sample.sample, (FLOATS, INT32, INT32, INT64, INT32, INT64, INT64, INT64, INT64)),
    "finish_step": (sample.finish_step, (INT64, INT64)),
    "finish_step_for_host": (sample.finish_step_for_host, (INT64, INT64)),
    "finish_step_ahead": (ahead.finish_step_ahead, (*[INT64] * 4, t.int64, *[INT64] * 5)),
    "decode_smollm2": (attention.decode_kernel(64, 3), DECODE),
    "decode_llama3_8b": (attention.decode_kernel(128, 4), DECODE),
    "decode_qwen3_32b": (attention.decode_kernel(128, 8), DECODE),
    "prefill_smollm2": (attention.prefill_kernel(64, 3), PREFILL),
    "prefill_llama3_8b": (attention.prefill_kernel(128, 4), PREFILL),
    "prefill_qwen3_32b": (attention.prefill_kernel(128, 8), PREFILL),
    "gemm_small_bf16": (gemm.gemm_kernel(gemm.SMALL_ROWS, gemm.BF16), (BF16, BF16, BF16)),
    "gemm_large_bf16": (gemm.gemm_kernel(gemm.LARGE_ROWS, gemm.BF16), (BF16, BF16, BF16)),
    "gemm_small_float32": (gemm.gemm_kernel(gemm.SMALL_ROWS, gemm.FLOAT32), (BF16, BF16, FLOATS)),
    "gemm_large_add": (gemm.gemm_kernel(gemm.LARGE_ROWS, gemm.ADD_FLOAT32), (BF16, BF16, FLOATS)),
}  # fmt: skip
ON_TENSOR_CORES = [
    name for name in KERNELS if name.startswith(("decode_s", "decode_l", "decode_q", "prefill", "gemm"))
]


@pytest.fixture(scope="module")
def ptx() -> dict[str, str]:
    """PTX of every kernel."""
    return {name: compile_kernel(kernel, signature) for name, (kernel, signature) in KERNELS.items()}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_needs_no_local_memory_and_no_float64(ptx, name):
    """A stack frame would mean that an array of registers was indexed at run time."""
    used = resources(ptx[name])
    assert (used["stack"], used["spills"]) == (0, 0)
    assert used["registers"] <= 255
    assert used["shared"] <= 48 * 1024
    assert ".f64" not in ptx[name], "a Python float or an integer crept into float32 arithmetic"


@pytest.mark.parametrize("name", ON_TENSOR_CORES)
def test_matrix_kernels_use_the_tensor_cores(ptx, name):
    for instruction in ("mma.sync.aligned.m16n8k16", "ldmatrix.sync", "cp.async.cg.shared.global"):
        assert instruction in ptx[name]


@pytest.mark.parametrize(
    ("name", "scope"), [("finish_step", "gpu"), ("finish_step_for_host", "sys"), ("finish_step_ahead", "sys")]
)
def test_done_is_a_release_after_the_fault(ptx, name, scope):
    text = ptx[name]
    assert text.count(f"st.release.{scope}") == 1
    assert text.index("st.release") > max(text.rindex("st.global"), text.rindex("ld.global"))


def test_dummy_weights_kernel_compiles():
    text = compile_kernel(weights.fill_random, (t.uint16[::1], t.int64, t.float64))
    assert resources(text)["stack"] == 0
