"""How kernels are compiled, and where the compiled code is kept.

Numba's cache looks only at the file of the cached function, so an edit in a callee would go unseen: the
cache folder is named after a hash of all kernel sources and of what compiles them.
"""

import hashlib
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np


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
def _keyed_cache_folder() -> Iterator[bool]:
    """Let Numba place new caches in the keyed folder; False where it cannot be written."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        yield True
        return
    folder = cache_home() / "tokenizer" / source_digest()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        yield False
        return
    config: Any = numba.config  # its attributes are made at run time
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield os.access(folder, os.W_OK)
    finally:
        config.CACHE_DIR = before


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call."""
    return numba.njit(nogil=True)(function)


def entry(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function that Python calls, for one `signature`, and keep the code on disk.

    The result is the compiled function itself, without the dispatcher that would look at the types of the
    arguments, which takes longer than encoding a short text.
    """

    def compile_entry(function: Callable[..., Any]) -> Any:
        with _keyed_cache_folder() as cached:
            dispatcher = numba.njit(signature, nogil=True, cache=cached)(function)
        (compiled,) = dispatcher.overloads.values()
        return compiled.entry_point

    return compile_entry
