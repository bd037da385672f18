"""A ring in shared host memory: a file under ``/dev/shm``, mapped directly.

Not `multiprocessing.shared_memory`: there a second process that attaches and exits unlinks
the segment. The file is allocated for real (a full ``/dev/shm`` is an error here, not a
SIGBUS later), readable by its owner only, and unlinked by the process that made it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ring import layout as at
from ring.layout import RingGeometry
from ring.sections import BufferError
from ring.views import RingView, check_ring, format_ring, host_view

SHM = Path(os.environ.get("BLINK_NUMBA_SHM", "/dev/shm"))
_PREFIX = "blink-numba-"


class RingError(RuntimeError):
    """A ring cannot be made or attached; the message names the remedy."""


def process_start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, None when there is none.

    With the pid it names a process for good: pids are reused, pairs are not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rsplit(")", 1)[1].split()
    return None if fields[0] == "Z" else int(fields[19])


class RingMemory:
    """A mapped ring file. Use `create` or `attach`; a context manager.

    Attributes
    ----------
    words : int64[n]
        The whole buffer.
    view : RingView
        Its sections.
    geometry : RingGeometry
    path : Path
    """

    def __init__(self, path: Path, mapping: mmap.mmap, owner: bool, inode: int) -> None:
        self.path = path
        self.words = np.frombuffer(mapping, np.int64)
        self.geometry = check_ring(self.words)
        self.view: RingView = host_view(self.words)
        self._mapping = mapping
        self._owner = owner
        self._inode = inode

    @classmethod
    def create(cls, name: str, geometry: RingGeometry, *, max_model_len: int, vocab_size: int,
               placement: int = at.HOST_PLACEMENT) -> RingMemory:  # fmt: skip
        """Make a ring named `name`; a stale one of a dead owner is replaced.

        Raises
        ------
        RingError
            A live process owns a ring of this name, or the shared memory has no room.
        """
        path = ring_path(name)
        remove_stale(path)
        size = geometry.words() * 8
        # Made under another name, then linked into place: nobody ever attaches to half a ring.
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            descriptor = os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except OSError as error:
            raise RingError(
                f"no ring can be made in {SHM} ({error.strerror}): BLINK_NUMBA_SHM names another folder"
            ) from None
        try:
            try:
                os.posix_fallocate(descriptor, 0, size)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.ENOMEM):
                    raise RingError(
                        f"{SHM} has no room for a ring of {size >> 20} MiB: "
                        "make it larger, or ask for fewer slots or a smaller arena"
                    ) from None
                raise RingError(
                    f"a ring of {size >> 20} MiB cannot be made in {SHM}: {error.strerror}"
                ) from None
            mapping = mmap.mmap(descriptor, size)
            words = np.frombuffer(mapping, np.int64)
            format_ring(words, geometry)
            info = host_view(words).info
            info[at.I_OWNER_PID] = os.getpid()
            info[at.I_BOOT_TIME_NS] = process_start_ticks(os.getpid()) or 0
            info[at.I_EPOCH] = time.time_ns() >> 10
            info[at.I_PLACEMENT] = placement
            info[at.I_MAX_MODEL_LEN] = max_model_len
            info[at.I_VOCAB_SIZE] = vocab_size
            inode = os.fstat(descriptor).st_ino
            try:
                os.link(scratch, path)
            except FileExistsError:
                raise RingError(f"a ring named {name!r} was made by another process meanwhile") from None
        finally:
            os.close(descriptor)
            scratch.unlink(missing_ok=True)
        return cls(path, mapping, owner=True, inode=inode)

    @classmethod
    def attach(cls, name: str, *, deadline_s: float = 0.0) -> RingMemory:
        """Map an existing ring; waits up to `deadline_s` seconds for it to appear."""
        path = ring_path(name)
        give_up = time.monotonic() + deadline_s
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR)
                break
            except FileNotFoundError:
                if time.monotonic() >= give_up:
                    raise RingError(f"no ring named {name!r} ({path}): is the engine running?") from None
                time.sleep(0.01)
            except PermissionError:
                raise RingError(f"ring {path} belongs to another user") from None
        try:
            status = os.fstat(descriptor)
            if status.st_size < 64:
                raise RingError(f"{path} is no ring: {status.st_size} bytes")
            mapping = mmap.mmap(descriptor, status.st_size)
        finally:
            os.close(descriptor)
        try:
            return cls(path, mapping, owner=False, inode=status.st_ino)
        except BufferError as error:
            raise RingError(f"{path}: {error}") from None

    @contextmanager
    def exclusively(self, deadline_s: float) -> Iterator[None]:
        """Hold the ring's file lock, which all take who write commands from outside.

        Raises
        ------
        RingError
            Another process held it until the deadline.
        """
        give_up = time.monotonic() + deadline_s
        with open(self.path, "rb") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= give_up:
                        raise RingError(
                            f"another process gave {self.path} a command that is not done yet"
                        ) from None
                    time.sleep(0.01)
            yield

    def adopt(self) -> None:
        """Become the owner: this process is the engine from now on and unlinks the file."""
        info = self.view.info
        info[at.I_OWNER_PID] = os.getpid()
        info[at.I_BOOT_TIME_NS] = process_start_ticks(os.getpid()) or 0
        self._owner = True

    def owner_alive(self) -> bool:
        """Whether the process that owns the ring still runs."""
        return _owner_alive(self.view.info)

    def close(self) -> None:
        """Drop the views; the owner unlinks its file (and only its own)."""
        if self._owner:
            self._owner = False
            try:
                if self.path.stat().st_ino == self._inode:
                    self.path.unlink()
            except FileNotFoundError:
                pass
        # NumPy views keep the mapping alive; it goes with the last of them.
        self.__dict__.pop("words", None)
        self.__dict__.pop("view", None)

    def __enter__(self) -> RingMemory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def ring_path(name: str) -> Path:
    """File of the ring named `name`."""
    if not name or "/" in name or name.startswith("."):
        raise RingError(f"ring name {name!r} must be a plain file name")
    return SHM / f"{_PREFIX}{name}"


def _owner_alive(info: np.ndarray) -> bool:
    pid = int(info[at.I_OWNER_PID])
    started = process_start_ticks(pid) if pid > 0 else None
    return started is not None and started == int(info[at.I_BOOT_TIME_NS])


def remove_stale(path: Path) -> None:
    """Remove a ring's file, if there is one and its owner is gone.

    Raises
    ------
    RingError
        A live process owns it, or it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            words = np.frombuffer(file.read(1 << 16), np.int64)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise RingError(f"{path} is in the way and cannot be read ({error}): remove it") from None
    try:
        start = int(words[at.TABLE_OF_INFO])
        info = words[start : start + at.INFO_WORDS]
        alive = _owner_alive(info)
        pid = int(info[at.I_OWNER_PID])
    except IndexError:
        alive, pid = False, 0
    if alive:
        raise RingError(f"ring {path} is in use by process {pid}: stop it or choose another ring name")
    path.unlink(missing_ok=True)


def stale_rings() -> list[Path]:
    """Ring files whose owner is gone."""
    found = []
    for path in sorted(SHM.glob(f"{_PREFIX}*")):
        try:
            with RingMemory.attach(path.name.removeprefix(_PREFIX)) as memory:
                if not memory.owner_alive():
                    found.append(path)
        except (RingError, OSError):
            continue
    return found
