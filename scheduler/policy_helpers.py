"""The functions that a policy calls, besides the questions of `scheduler.view`: found, and compiled anew.

Numba compiles a function that another calls under its first caller's options, and keeps that for all.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

from ring.jit import uncounted

OWN_PACKAGES = ("ring", "scheduler")
_QUESTIONS = ("scheduler.view", "scheduler.state")  # what is in them ends and divides by no zero


def helpers(body: FunctionType) -> Iterator[FunctionType]:
    """The compiled functions that a function names, as written."""
    around = inspect.getclosurevars(body)
    values = [*around.globals.values(), *around.nonlocals.values()]
    for module in [value for value in values if isinstance(value, ModuleType)]:
        values += [getattr(module, name, None) for name in body.__code__.co_names]
    return (value.py_func for value in values if _is_helper(value))


def afresh(body: FunctionType, **options: Any) -> FunctionType:
    """A copy of a function whose helpers are copies, too, to be compiled under these options.

    A helper that is named by its module (``module.helper``) stays the one it is.
    """

    def anew(value: Any) -> Any:
        return uncounted(afresh(value.py_func, **options), cache=False, **options)

    names = body.__code__.co_names
    found = {name: anew(body.__globals__[name]) for name in names if _is_helper(body.__globals__.get(name))}
    cells = tuple(
        CellType(anew(cell.cell_contents)) if _is_helper(cell.cell_contents) else cell
        for cell in body.__closure__ or ()
    )
    copy = FunctionType(body.__code__, {**body.__globals__, **found}, body.__name__, body.__defaults__, cells)
    copy.__module__, copy.__qualname__ = body.__module__, body.__qualname__
    return copy


def _is_helper(value: Any) -> bool:
    function = getattr(value, "py_func", None)
    module = getattr(function, "__module__", None) or ""
    return inspect.isfunction(function) and not module.startswith("ring.") and module not in _QUESTIONS
