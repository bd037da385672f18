"""A virtual machine with an RDMA device, for tests: QEMU, Debian's kernel, soft-RoCE.

The guest sees this machine's files at their own paths, so the same interpreter and checkout
run there, on real verbs. Fully emulated: it needs no KVM, and says nothing about speed.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ring.jit import cache_home

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[2]
BUILD_DEADLINE_S = 300.0
REQUIRED = os.environ.get("BLINK_REQUIRE_RDMA") == "1"
# no_timer_check: a busy host delivers timer interrupts late, which the kernel takes for a defect
_KERNEL_OPTIONS = "mitigations=off random.trust_cpu=on tsc=reliable no_timer_check"
_ADDRESS = "10.99.0.1"
_HIDDEN = ("/tmp", "/run", "/dev")  # folders that the guest has of its own


class GuestMissing(RuntimeError):
    """The guest is not built here, or cannot be."""


def guest_folder() -> Path:
    """Where the guest's kernel and packages lie."""
    return Path(os.environ.get("BLINK_RDMA_GUEST") or cache_home() / "rdma-guest")


def ensure_built() -> Path:
    """The built guest's folder; builds it where RDMA is required.

    Raises
    ------
    GuestMissing
    """
    folder = guest_folder()
    ready, recipe = folder / "ready", b"".join((HERE / name).read_bytes() for name in ("build.sh", "init"))
    built = ready.exists() and ready.read_text().strip() == hashlib.sha256(recipe).hexdigest()
    if built and shutil.which("qemu-system-x86_64"):
        return folder
    ready.unlink(missing_ok=True)
    build = f"{HERE.relative_to(PROJECT)}/build.sh"
    if not REQUIRED:
        raise GuestMissing(
            f"no RDMA guest of this version here: build it as root with `{build} {folder}`, or set "
            "BLINK_REQUIRE_RDMA=1"
        )
    outcome = subprocess.run(
        [HERE / "build.sh", folder], capture_output=True, text=True, timeout=BUILD_DEADLINE_S
    )
    if outcome.returncode:
        raise GuestMissing(f"{build} failed: {outcome.stderr.strip()[-1000:]}")
    return folder


class Guest:
    """One boot of the guest.

    Parameters
    ----------
    script : str
        Bash, run as root in the checkout, with soft-RoCE device ``rxe0`` up.
    environment : dict
    shares : list of Path
        Folders to share read-write, unbuffered, besides the work folder: what is written on one side
        is seen on the other.

    Attributes
    ----------
    work : Path
        Shared read-write; ``/run/task`` in the guest.
    """

    def __init__(self, script: str, environment: dict[str, str], shares: list[Path]) -> None:
        folder = ensure_built()
        self.work = Path(tempfile.mkdtemp(prefix="blink-rdma-"))
        hidden = {PROJECT, Path(sys.prefix), Path(sys.base_prefix)}
        caching = dict.fromkeys(shares, "none")
        caching |= {path: "loose" for path in hidden if str(path).startswith(_HIDDEN)}
        lines = [f"share{k} {mode} {path}\n" for k, (path, mode) in enumerate(caching.items())]
        (self.work / "shares").write_text("".join(lines))
        settings = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8",
                    "PYTHONDONTWRITEBYTECODE": "1", "PYTHON": sys.executable} | environment  # fmt: skip
        lines = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
        lines += [
            "ip link set lo up",
            f"ip link add d0 type dummy && ip addr add {_ADDRESS}/24 dev d0 && ip link set d0 up",
            "rdma link add rxe0 type rxe netdev d0",
            f"cd {shlex.quote(str(PROJECT))}",
            script,
        ]
        (self.work / "command.sh").write_text("\n".join(lines) + "\n")
        command = [
            "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "3072",
            "-M", "q35", "-nodefaults", "-display", "none", "-no-reboot",
            "-serial", f"file:{self.work / 'console'}", "-monitor", "none",
            "-kernel", str(folder / "vmlinux"), "-initrd", str(folder / "initrd.gz"),
            "-append", f"console=ttyS0 quiet panic=-1 {_KERNEL_OPTIONS}",
        ]  # fmt: skip
        command += _share("hostroot", Path("/"), read_only=True)
        command += _share("sysroot", folder / "sysroot", read_only=True)
        command += _share("work", self.work)
        for k, path in enumerate(caching):
            command += _share(f"share{k}", path)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def wait(self, deadline_s: float) -> int:
        """Exit status of the script; `TimeoutError` at the deadline."""
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the guest did not end within {deadline_s:g} s:\n{self.console()}") from None
        status = self.work / "status"
        if not status.exists():
            raise RuntimeError(f"the guest did not boot:\n{self.console()}")
        return int(status.read_text())

    def console(self) -> str:
        """What the guest has printed, its last 6000 characters."""
        return (self.work / "console").read_text(errors="replace")[-6000:]

    def close(self) -> None:
        """End the guest and remove the work folder."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.work, ignore_errors=True)


def _share(tag: str, path: Path, *, read_only: bool = False) -> list[str]:
    options = f"local,id={tag},path={path},security_model=none"
    if read_only:
        options += ",readonly=on" + (",multidevs=remap" if tag == "hostroot" else "")
    return ["-fsdev", options, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
