"""The protocol packages a second time, as plain Python, under another name.

``.py_func`` of a compiled function is not enough: its callees stay compiled. So the same
sources are loaded once more with the JIT disabled, as ``<name>.ring``, ``<name>.scheduler``
and so on; the imports among them lead to the copy, those of anything else to the real
modules. In the copy the atomics' bodies run, and through `ring.atomics.interposer` they are
whoever's who set it. Sources may be edited on the way, which is how mutants are made.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import numba

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("ring", "graphs", "scheduler", "rdma")

_config: Any = numba.config  # its attributes are made at run time
_compiled: dict[tuple[Path, int], CodeType] = {}


class CopyError(RuntimeError):
    """The copy cannot be made; the message names the module."""


def _as_it_is(function: Any) -> Any:
    return function


def _no_meaning(*_: Any, **__: Any) -> Any:
    """`overload(stub)`: gives a target's meaning of a stub, and the copy has no targets."""
    return _as_it_is


_EXTENDING = SimpleNamespace(intrinsic=_as_it_is, overload=_no_meaning, register_jitable=_as_it_is)


class PythonCopy:
    """One copy. Modules are loaded when first asked for.

    Parameters
    ----------
    name : str
        Prefix of the copy's modules in `sys.modules`; one name, one copy.
    edits : mapping of str to list of (str, str)
        For a module such as ``"scheduler.claim"``, pairs of old and new source text; each old
        text must occur exactly once.

    Examples
    --------
    >>> copy = PythonCopy("plain")
    >>> copy.module("ring.words").pack_req(1, 2)
    258
    """

    def __init__(self, name: str, edits: Mapping[str, list[tuple[str, str]]] | None = None) -> None:
        if any(loaded == name or loaded.startswith(name + ".") for loaded in sys.modules):
            raise CopyError(f"modules named {name!r} are loaded already: choose another name")
        self.name = name
        self._edits = dict(edits or {})
        self._modules: dict[str, ModuleType] = {}
        self._builtins = {**vars(builtins), "__import__": self._import}

    def module(self, path: str) -> Any:
        """The copy of a module such as ``"scheduler.turn"``."""
        if path not in self._modules:
            if "." in path:
                self.module(path.rpartition(".")[0])
            if path not in self._modules:  # unless its package has loaded it
                self._load(path)
        return self._modules[path]

    def loaded(self) -> list[ModuleType]:
        """The modules loaded so far."""
        return list(self._modules.values())

    def close(self) -> None:
        """Forget the copy's modules."""
        for path in self._modules:
            sys.modules.pop(f"{self.name}.{path}", None)
        self._modules.clear()

    def run(self, code: CodeType, module: ModuleType) -> None:
        """Run a module's code as plain Python; what it imports of these packages is the copy's."""
        module.__dict__["__builtins__"] = self._builtins
        jit_was_disabled = _config.DISABLE_JIT
        _config.DISABLE_JIT = True
        try:
            exec(code, module.__dict__)
        finally:
            _config.DISABLE_JIT = jit_was_disabled

    def _load(self, path: str) -> None:
        file = ROOT.joinpath(*path.split(".")).with_suffix(".py")
        if not file.exists():
            file = ROOT.joinpath(*path.split("."), "__init__.py")
        module = ModuleType(f"{self.name}.{path}")
        module.__file__ = str(file)
        if file.name == "__init__.py":
            module.__path__ = []  # a package; its modules are found by this loader alone
        # known before it runs: imports may go in circles, and dataclasses look their module up
        self._modules[path] = sys.modules[module.__name__] = module
        try:
            self.run(self._code(path, file), module)
        except BaseException:
            self._modules.pop(path, None)
            sys.modules.pop(module.__name__, None)
            raise
        parent, _, leaf = path.rpartition(".")
        if parent:
            setattr(self._modules[parent], leaf, module)

    def _code(self, path: str, file: Path) -> CodeType:
        edits = self._edits.get(path)
        key = (file, file.stat().st_mtime_ns)
        if not edits and key in _compiled:
            return _compiled[key]
        source = file.read_text()
        for old, new in edits or ():
            if source.count(old) != 1:
                raise CopyError(f"edit of {path}: {old!r} occurs {source.count(old)} times, not once")
            source = source.replace(old, new)
        code = compile(source, str(file), "exec", dont_inherit=True)
        if not edits:
            _compiled[key] = code
        return code

    def _import(
        self, name: str, scope: Any = None, local: Any = None, wanted: Any = (), level: int = 0
    ) -> Any:
        """`__import__` of the copy's modules."""
        if name in ("numba.extending", "numba.cuda.extending"):
            if name.startswith("numba.cuda"):
                raise ImportError("the copy has no CUDA target")
            return _EXTENDING
        if level or name.partition(".")[0] not in PACKAGES:
            return builtins.__import__(name, scope, local, wanted, level)
        module = self.module(name)
        for leaf in wanted or ():
            if not hasattr(module, leaf) and hasattr(module, "__path__"):
                self.module(f"{name}.{leaf}")
        return module if wanted else self.module(name.partition(".")[0])
