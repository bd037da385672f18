"""CUDA engine: Llama-family forward in bf16 on one GPU, in kernels that a graph can hold.

`CudaEngine` owns weights, cache and buffers and enqueues whole steps. Matrix products are
cuBLASLt's (`blas`) or, batch-invariant, the own tensor-core kernel (`gemm`); attention over the
paged cache (`attention`), norms, rotary positions and gating (`layers`) and sampling (`sample`)
are Numba kernels whose results for a row do not depend on its neighbours. `ptx` holds the
instructions Numba has no word for. Needs the ``cuda`` extra; importing needs no GPU.
"""

from blink_numba.engines.cuda.engine import CudaEngine, check_config, check_spec

__all__ = ["CudaEngine", "check_config", "check_spec"]
