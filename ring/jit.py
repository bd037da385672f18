"""The one `njit` of the protocol code, and the compile cache it writes to.

Numba's own cache looks only at the file that holds a function: an edit in a callee of
another file goes unseen. So the cache folder is named after a hash of every source file
of the sibling packages and of the compiler's versions; an edit anywhere is a new folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import llvmlite
import numba
import numpy as np

_PACKAGES = ("ring", "graphs", "scheduler", "rdma", "blink_numba")


def source_digest() -> str:
    """Hash of all protocol sources and of what compiles them (16 hex digits)."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    for version in (numba.__version__, llvmlite.__version__, np.__version__, platform.python_version()):
        digest.update(version.encode())
    digest.update(numba.config.CPU_NAME.encode() if numba.config.CPU_NAME else b"host")
    return digest.hexdigest()[:16]


def cache_home() -> Path:
    """Folder of everything the project caches: ``BLINK_NUMBA_CACHE`` or the XDG cache folder."""
    explicit = os.environ.get("BLINK_NUMBA_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blink-numba"


def _use_own_cache_folder() -> bool:
    """Point Numba at the keyed folder; False (no caching) where it cannot be written."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return True
    folder = cache_home() / "jit" / source_digest()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    numba.config.CACHE_DIR = str(folder)
    return os.access(folder, os.W_OK)


CACHING = _use_own_cache_folder()


def njit(function=None, *, cache: bool | None = None, **options):
    """`numba.njit` as protocol code uses it: without the GIL, cached in the keyed folder.

    Parameters
    ----------
    function : callable
        The function; without it, a decorator is returned.
    cache : bool, optional
        Overrides the default (cached wherever the cache folder is writable). Functions
        made at run time, such as policies from a notebook cell, pass ``False``.
    **options
        Passed on to `numba.njit`.
    """
    options.setdefault("nogil", True)
    decorate = numba.njit(cache=CACHING if cache is None else cache, **options)
    return decorate if function is None else decorate(function)
