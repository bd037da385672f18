"""Where kernel tests run: in lockstep without a GPU, and on one (`make gpu-test`)."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["lockstep", pytest.param("gpu", marks=pytest.mark.gpu)])
def run(request):
    """``run(kernel, grid, block, arguments)``: a launch over NumPy arrays, changed in place."""
    if request.param == "gpu":
        from tests.cuda_device import run_on_device, skip_without_gpu

        skip_without_gpu()
        return run_on_device
    from tests.cuda_lockstep import run_kernel

    return run_kernel
