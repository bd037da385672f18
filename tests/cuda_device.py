"""Launching kernels on a real GPU, for tests."""

from __future__ import annotations

import numpy as np
import pytest


def skip_without_gpu() -> None:
    """Skip the calling test where there is no GPU."""
    from numba import cuda

    if not cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")


def run_on_device(kernel, grid, block, arguments) -> None:
    """As `tests.cuda_lockstep.run_kernel`, on the GPU: arrays go there and come back."""
    from graphs._cuda import cuda, new_stream

    stream = new_stream()
    device = [cuda.to_device(each) if isinstance(each, np.ndarray) else each for each in arguments]
    cuda.synchronize()  # the copies went to the legacy stream, which the new one ignores
    kernel[grid, block, stream](*device)
    stream.synchronize()
    for host, there in zip(arguments, device):
        if isinstance(host, np.ndarray):
            host[...] = there.copy_to_host()
