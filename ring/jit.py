"""The one `njit` of the protocol code, and the compile cache it writes to.

Numba's own cache looks only at the file that holds a function: an edit in a callee of
another file goes unseen. So the cache folder is named after a hash of every source file
of compiled code and of the compiler's versions; an edit anywhere is a new folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np

_config: Any = numba.config  # its attributes are made at run time

# whatever compiled code is made from; a change elsewhere need not compile anything anew
_SOURCES = ("ring", "graphs", "scheduler", "rdma", "blink_numba/engines")


def source_digest() -> str:
    """Hash of the sources of compiled code and of what compiles them (16 hex digits)."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    for version in (numba.__version__, llvmlite.__version__, np.__version__, platform.python_version()):
        digest.update(version.encode())
    digest.update((_config.CPU_NAME or "host").encode())
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
    _config.CACHE_DIR = str(folder)
    return os.access(folder, os.W_OK)


CACHING = _use_own_cache_folder()


def njit(function: Any = None, *, cache: bool | None = None, **options: Any) -> Any:
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
    caching = CACHING if cache is None else cache

    def decorate(body):
        try:
            return numba.njit(cache=caching, **options)(body)
        except RuntimeError:  # no source file to key a cache by: typed at a prompt, or made by exec
            return numba.njit(**options)(body)

    return decorate if function is None else decorate(function)


def uncounted(function, *, cache: bool | None = None, **options: Any):
    """`njit` without reference counts, for functions that take views and answer numbers.

    Numba counts the references to every array of a view in every call, atomically: with views
    of a dozen arrays that was fifty times the cost of a scheduler's step; and it copies a view
    into every call that is not inlined, so these always are. A function so compiled must not
    return an array, nor call one that does (but for `ring.sections.section`, which is inlined).

    Nor does it get the entries for Python and for function pointers that Numba makes of every
    function, which unpack a dozen arrays each: they were half of what compiling the scheduler
    took. Called from Python, it is compiled once more, with one.
    """
    inner = njit(
        function, cache=cache, _nrt=False, forceinline=True, no_cpython_wrapper=True,
        no_cfunc_wrapper=True, **options,
    )  # fmt: skip
    if hasattr(inner, "py_func"):  # not while Numba's JIT is disabled
        _answer_python(inner)
    return inner


def uncounted_pointer(function, *, cache: bool | None = None):
    """`uncounted`, for a function that is passed as a pointer or often called from Python."""
    return njit(function, cache=cache, _nrt=False, forceinline=True)


def _answer_python(inner: Any) -> None:
    """Have a dispatcher without entry for Python answer a call from there by a twin that has one."""
    twin: list[Any] = []

    def callable_for(*_arguments: Any, **_keywords: Any) -> Any:
        if not twin:
            # not cached: the cache would not tell the two apart
            twin.append(njit(inner.py_func, cache=False, _nrt=False, forceinline=True))
        return twin[0]

    def add_overload(result: Any) -> None:
        inner.overloads[tuple(result.signature.args)] = result  # but no entry to call

    inner._compile_for_args = callable_for
    inner.add_overload = add_overload
