"""Compiling kernels for sm_90 on a machine without a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

CAPABILITY = (9, 0)


@contextmanager
def stand_in_device():
    """Numba asks for the current device's capability when a kernel calls device functions."""
    from numba.cuda import dispatcher

    original = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=CAPABILITY)
    try:
        yield
    finally:
        dispatcher.get_current_device = original


def compile_kernel(kernel, signature, output: str = "ptx"):
    """PTX (str) or LTO-IR (bytes) of a `cuda.jit` kernel for `signature` (tuple of types)."""
    from numba import cuda

    bounds = kernel.targetoptions.get("launch_bounds")
    with stand_in_device():
        code, _ = cuda.compile(
            kernel.py_func, signature, cc=CAPABILITY, device=False, abi="numba",
            output=output, launch_bounds=bounds,
        )  # fmt: skip
    return code


def resources(ptx: str) -> dict[str, int]:
    """What ptxas says of the only kernel in `ptx`: registers, spill and stack bytes, shared bytes."""
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("ptxas is not installed: register use cannot be checked")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(lowered_to_known_isa(ptx, ptxas))
        command = [ptxas, "-arch=sm_90", "-v", str(source), "-o", str(Path(folder) / "kernel.cubin")]
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert outcome.returncode == 0, outcome.stderr
    text = outcome.stderr

    def number(pattern: str) -> int:
        return sum(int(found) for found in re.findall(pattern, text))

    return {
        "registers": number(r"Used (\d+) registers"),
        "stack": number(r"(\d+) bytes stack frame"),
        "spills": number(r"(\d+) bytes spill stores"),
        "shared": number(r"(\d+) bytes smem"),
    }


def lowered_to_known_isa(ptx: str, ptxas: str) -> str:
    """`ptx` with its ISA version lowered to what this ptxas reads, where it is newer."""
    shown = subprocess.run([ptxas, "--version"], capture_output=True, text=True, timeout=60).stdout
    release = re.search(r"release (\d+)\.(\d+)", shown)
    assert release, shown
    newest = f"{int(release[1]) - 4}.{release[2]}"  # CUDA 13.0 reads PTX 9.0
    found = re.search(r"^\.version (\S+)", ptx, re.MULTILINE)
    assert found, "no PTX version"
    if tuple(map(int, found[1].split("."))) <= tuple(map(int, newest.split("."))):
        return ptx
    return ptx.replace(found[0], f".version {newest}", 1)


def link_with_device_runtime(ltoir: bytes) -> bytes:
    """Cubin of a kernel's LTO-IR and ``libcudadevrt.a``; raises what the linker says is missing."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    from graphs.device_launch import device_runtime_library

    linker = Linker(
        ObjectCode.from_ltoir(ltoir),
        ObjectCode.from_library(device_runtime_library()),
        options=LinkerOptions(arch="sm_90", link_time_optimization=True),
    )
    return bytes(linker.link("cubin").code)


def loops_with(ptx: str, instruction: str) -> int:
    """How many times `instruction` stands between a label and a later branch back to it."""
    lines = [line.strip() for line in ptx.splitlines()]
    labels = {line[:-1]: at for at, line in enumerate(lines) if line.endswith(":")}
    spans = []
    for at, line in enumerate(lines):
        branch = re.search(r"\bbra(?:\.uni)?\s+(\S+);", line)
        if branch and labels.get(branch[1], at) < at:
            spans.append((labels[branch[1]], at))
    hits = [at for at, line in enumerate(lines) if line.startswith(instruction)]
    return sum(any(first < at < last for first, last in spans) for at in hits)
