"""What could keep blink-numba from working on this machine, and what helps."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from ring.jit import cache_home
from ring.memory import SHM, stale_rings

MIB = 1 << 20
RING_MIB = 64  # of the default ring, rounded up


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    Attributes
    ----------
    what : str
    verdict : {"ok", "warning", "problem"}
        A problem keeps something from working; a warning makes it slower or less certain.
    found : str
    remedy : str
        What to do; empty when nothing.
    """

    what: str
    verdict: Literal["ok", "warning", "problem"]
    found: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def examine() -> list[Finding]:
    """All findings; a check that fails itself is a finding too."""
    findings = []
    for check in (_python, _packages, _processor, _shared_memory, _rings, _cache, _model, _gpu, _rdma):
        try:
            findings.extend(check())
        except Exception as error:  # whatever a check did not foresee must not hide the others
            name = check.__name__.strip("_").replace("_", " ")
            findings.append(
                Finding(name, "warning", f"could not be looked at: {type(error).__name__}: {error}")
            )
    return findings


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    good = (3, 11) <= sys.version_info < (3, 14) and sys.platform == "linux"
    yield Finding(
        "Python", "ok" if good else "problem", f"{version} on {sys.platform}",
        "" if good else "use Python 3.11, 3.12 or 3.13 on Linux",
    )  # fmt: skip


def _packages() -> Iterator[Finding]:
    for name, below in (("numba", (0, 69)), ("numpy", (2, 5))):
        version = metadata.version(name)
        numbers = tuple(int(part) for part in version.split(".")[:2])
        good = numbers < below
        limit = ".".join(map(str, below))
        yield Finding(
            name, "ok" if good else "problem", version,
            "" if good else f"pip install '{name}<{limit}': later versions break the kernels",
        )  # fmt: skip


def _processor() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield Finding(
        "cores", "ok" if cores >= 2 else "warning", str(cores),
        "" if cores >= 2 else "scheduler, engine and front end will share one core",
    )  # fmt: skip
    flags = Path("/proc/cpuinfo").read_text()
    if platform.machine() == "x86_64":
        vectors = next((name for name in ("avx512f", "avx2") if name in flags), None)
        yield Finding(
            "vectors", "ok" if vectors else "warning", vectors or "no AVX2",
            "" if vectors else "the CPU engine will be slow here",
        )  # fmt: skip


def _shared_memory() -> Iterator[Finding]:
    free = shutil.disk_usage(SHM).free // MIB
    writable = os.access(SHM, os.W_OK)
    good = writable and free >= RING_MIB
    remedy = "" if good else "make it larger (docker: --shm-size=1g), or set BLINK_NUMBA_SHM to another tmpfs"
    found = f"{free} MiB free" if writable else "cannot be written"
    yield Finding(str(SHM), "ok" if good else "problem", found, remedy)


def _rings() -> Iterator[Finding]:
    stale = stale_rings()
    yield Finding(
        "rings", "warning" if stale else "ok",
        f"{len(stale)} left by processes that are gone" if stale else "none left behind",
        f"remove {', '.join(map(str, stale))}" if stale else "",
    )  # fmt: skip


def _cache() -> Iterator[Finding]:
    home = cache_home()
    place = next(path for path in (home, *home.parents) if path.exists())
    writable = os.access(place, os.W_OK)
    free = shutil.disk_usage(place).free // MIB
    good = writable and free >= 512
    found = f"{free} MiB free" if writable else "cannot be written"
    yield Finding(
        "cache", "ok" if good else "warning", f"{home}: {found}",
        "" if good else "set BLINK_NUMBA_CACHE to a folder with room: else every start compiles anew",
    )  # fmt: skip


def _model() -> Iterator[Finding]:
    from blink_numba.models import model_path

    there = model_path("smollm2").exists()
    yield Finding("model smollm2", "ok", "fetched" if there else "will be fetched at first use")


def _gpu() -> Iterator[Finding]:
    from blink_numba.runtime.probe import cuda_usable

    reason = cuda_usable()
    if reason is not None:
        yield Finding("GPU", "ok", f"not used: {reason}")
        return
    from cuda.core import Device  # type: ignore[attr-defined]

    for number, device in enumerate(Device.get_all_devices()):
        major, minor = device.compute_capability
        good = (major, minor) >= (9, 0)
        yield Finding(
            f"GPU {number}", "ok" if good else "warning",
            f"{device.name}, compute capability {major}.{minor}",
            "" if good else "kernels are made for compute capability 9.0",
        )  # fmt: skip
        if device.properties.kernel_exec_timeout:
            yield Finding(
                f"GPU {number} timeout", "problem", "kernels are ended after a while (a display runs on it)",
                "the scheduler is a kernel that never ends: use a GPU without a display",
            )  # fmt: skip
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or Path("/tmp/nvidia-mps").exists():
        yield Finding(
            "MPS", "problem", "an MPS server seems to run",
            "stop it: kernels that stay resident starve its other clients, and they the scheduler",
        )  # fmt: skip
    yield from _other_gpu_processes()


def _other_gpu_processes() -> Iterator[Finding]:
    import subprocess

    tool = shutil.which("nvidia-smi")
    if tool is None:
        return
    listing = subprocess.run(
        [tool, "--query-compute-apps=pid,process_name", "--format=csv,noheader"],
        capture_output=True, text=True, timeout=20, check=False,
    ).stdout.splitlines()  # fmt: skip
    others = [line for line in listing if line.strip() and not line.startswith(f"{os.getpid()},")]
    yield Finding(
        "other GPU users", "warning" if others else "ok", "; ".join(others) or "none",
        "their kernels take turns with the scheduler: stop them while serving" if others else "",
    )  # fmt: skip


def _rdma() -> Iterator[Finding]:
    folder = Path("/sys/class/infiniband")
    devices = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    yield Finding("RDMA", "ok", ", ".join(devices) or "no device: front ends run on the engine's host only")
