"""How kernels are compiled, and where the compiled code is kept.

Numba's cache looks only at the file of the cached function, so an edit in a callee would go unseen: the
cache folder is named after a hash of all kernel sources and of what compiles them.
"""

import hashlib
import logging
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np

_log = logging.getLogger("tokenizer")


def cache_home() -> Path:
    """Folder of everything that can be rebuilt: ``BLINK_NUMBA_CACHE``, or below the user's cache folder."""
    explicit = os.environ.get("BLINK_NUMBA_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blink-numba"


def source_digest() -> str:
    """Hash of the kernel sources and of the compiler's versions, 16 hex digits."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    for version in (numba.__version__, llvmlite.__version__, np.__version__, platform.python_version()):
        digest.update(version.encode())
    return digest.hexdigest()[:16]


@contextmanager
def _cache_folder() -> Iterator[Path | None]:
    """Let Numba place new caches in the keyed folder, and yield it; None where it cannot be written."""
    explicit = os.environ.get("NUMBA_CACHE_DIR")
    if explicit:
        yield Path(explicit)
        return
    folder = cache_home() / "tokenizer" / source_digest()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        yield None
        return
    config: Any = numba.config  # its attributes are made at run time
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield folder if os.access(folder, os.W_OK) else None
    finally:
        config.CACHE_DIR = before


def _files(folder: Path, function: Callable[..., Any]) -> list[Path]:
    """Cache files of `function` below `folder`."""
    return list(folder.rglob(f"*.{function.__name__}-{function.__code__.co_firstlineno}.*"))


@cache
def _announce(why: str) -> None:
    """Say, once, that this start takes long and why."""
    _log.warning("compiling the tokenizer's kernels, which takes half a minute or so (%s)", why)


def _compile(function: Callable[..., Any], signature: str, folder: Path | None) -> Any:
    """Dispatcher of `function`, with one overload, from the cache in `folder` or compiled and put there."""
    if folder is None:
        _announce(f"{cache_home()} cannot be written: set BLINK_NUMBA_CACHE to a folder that can")
        return numba.njit(signature, nogil=True)(function)
    if not _files(folder, function):
        _announce(f"only this once: they are kept in {folder}")
    for _ in range(2):
        try:
            return numba.njit(signature, nogil=True, cache=True)(function)
        except OSError as error:  # a full or unreadable disk: compile without it
            _announce(f"they cannot be kept: {error}")
            break
        except Exception:  # Numba unpickles a damaged file without looking: anything may come of it
            with suppress(OSError):
                for file in _files(folder, function):
                    file.unlink(missing_ok=True)
    return numba.njit(signature, nogil=True)(function)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call."""
    return numba.njit(nogil=True)(function)


def entry(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function that Python calls, for one `signature`, and keep the code on disk.

    The result is the compiled function itself, without the dispatcher that would look at the types of the
    arguments, which takes longer than encoding a short text.
    """

    def compile_entry(function: Callable[..., Any]) -> Any:
        with _cache_folder() as folder:
            dispatcher = _compile(function, signature, folder)
        (compiled,) = dispatcher.overloads.values()
        return compiled.entry_point

    return compile_entry
