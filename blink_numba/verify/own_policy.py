"""A policy of the user's own, made of the modules of a pure-Python copy."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from ring.python_copy import PythonCopy


def own_policy(copy: PythonCopy, name: str) -> Any:
    """The policy of a file, as plain Python over a copy's modules.

    Parameters
    ----------
    copy : PythonCopy
    name : str
        ``file.py:attribute`` or ``module:attribute``, as `scheduler.policies.find` takes it.

    Raises
    ------
    ValueError
        There is no such source.
    """
    where, _, attribute = name.rpartition(":")
    file = Path(where)
    if file.suffix != ".py":
        spec = importlib.util.find_spec(where)
        if spec is None or spec.origin is None:
            raise ValueError(f"policy module {where!r} has no source: name it as file.py:attribute")
        file = Path(spec.origin)
    module = ModuleType(f"{copy.name}.{file.stem}")
    module.__file__ = str(file)
    copy.run(compile(file.read_text(), str(file), "exec", dont_inherit=True), module)
    return getattr(module, attribute)
