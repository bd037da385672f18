"""Telling early, with the line and the reason, what a policy may not do.

A policy's functions are compiled into the scheduler's kernel: no objects, no allocation, no
floating point, no writing but to its own memory. Numba would refuse most of that too, in its
own words and only on the target that cannot; this looks at the source before.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
from numba.core import config, errors, types

from scheduler import state as sc
from scheduler.policy import FUNCTIONS, ONE_ARGUMENT, Policy, PolicyError
from scheduler.policy_ends import MOST_ROUNDS, deepest, loops_unseen, rounds_of_loop
from scheduler.policy_helpers import OWN_PACKAGES, helpers
from scheduler.state import borrowed_view

WORDS = types.Array(types.int64, 1, "C")
SIGNATURES = {kind: types.int64(WORDS, WORDS, *[types.int64] * (kind not in ONE_ARGUMENT))
              for kind in FUNCTIONS}  # fmt: skip

_ALLOWED_BUILTINS = {"abs", "bool", "int", "len", "max", "min", "range"}

_REASONS: dict[type[ast.AST], str] = {
    ast.Try: "a kernel has no exceptions to catch",
    ast.Raise: "a kernel has nobody to raise to: answer with a key instead",
    ast.Assert: "a kernel has nobody to raise to: check the policy with blink_numba.lab.check",
    ast.With: "a kernel has no context managers",
    ast.Yield: "a kernel has no generators",
    ast.YieldFrom: "a kernel has no generators",
    ast.Await: "a kernel has no coroutines",
    ast.Import: "imports belong outside the function",
    ast.ImportFrom: "imports belong outside the function",
    ast.Global: "a kernel cannot rebind globals: use remember(view, index, value) in may_admit",
    ast.Nonlocal: "a kernel cannot rebind names: use remember(view, index, value) in may_admit",
    ast.Lambda: "a kernel has no function objects",
    ast.ListComp: "a list allocates, and a kernel cannot: loop over numbers",
    ast.SetComp: "a set allocates, and a kernel cannot: loop over numbers",
    ast.DictComp: "a dict allocates, and a kernel cannot: loop over numbers",
    ast.GeneratorExp: "a generator is an object, and a kernel has none: loop over numbers",
    ast.List: "a list allocates, and a kernel cannot: use recall and remember",
    ast.Set: "a set allocates, and a kernel cannot: use recall and remember",
    ast.Dict: "a dict allocates, and a kernel cannot: use recall and remember",
    ast.JoinedStr: "a kernel has no strings",
}


_UNBOUNDED = "a loop without a bound can hold up a kernel for ever"
_NO_PLAIN_ARGUMENTS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS

# Questions that take an index into so many words: a constant beyond them is a mistake.
_INDEXED = {
    "parameter": sc.PARAMETERS,
    "recall": sc.MEMORY,
    "remember": sc.MEMORY,
    "tokens_of_tenant": sc.TENANTS,
}


def check_source(title: str, kind: str, function: Callable[..., Any]) -> None:
    """Raise `PolicyError` for what the function's source shows to be impossible in a kernel."""
    body = getattr(function, "py_func", function)
    wanted = 1 if kind in ONE_ARGUMENT else 2
    if not callable(body) or not hasattr(body, "__code__"):
        raise PolicyError(f"policy {title!r}: {kind} must be a function, got {function!r}")
    if inspect.ismethod(body):
        raise PolicyError(
            f"policy {title!r}: {kind} must be a function, not a method: a kernel has no objects"
        )
    code = body.__code__
    if code.co_argcount != wanted or code.co_kwonlyargcount or code.co_flags & _NO_PLAIN_ARGUMENTS:
        names = "(view)" if wanted == 1 else "(view, request)"
        raise PolicyError(
            f"policy {title!r}, {kind}, {_place(body, body.__code__.co_firstlineno)}: "
            f"must take {names}, takes {inspect.signature(body)}"
        )
    if inspect.iscoroutinefunction(body):
        raise PolicyError(f"policy {title!r}: {kind} must not be async: {_REASONS[ast.Await]}")
    if body.__name__ == "<lambda>":
        raise PolicyError(f"policy {title!r}: {kind} must be written with def, not as an expression")
    _check_body(title, kind, body, ())


def _check_body(title: str, kind: str, body: FunctionType, callers: tuple[FunctionType, ...]) -> int:
    """Refuse what a function, or one that it calls, cannot do; how many rounds its loops make at most."""

    def refuse(line: int, reason: str) -> None:
        raise PolicyError(f"policy {title!r}, {kind}, {_place(body, line)}: {reason}")

    first = body.__code__.co_firstlineno
    if body in callers:
        refuse(first, f"{body.__name__}() calls itself: a kernel's stack is small, use a loop with a bound")
    definition, rounds = _definition(body), 1
    if definition is not None:
        for node in _inside(definition):
            reason = _objection(node, kind, body)
            if reason:
                refuse(getattr(node, "lineno", 1) + first - 1, reason)
        rounds = deepest(definition.body, body)
    elif loops_unseen(body):
        refuse(first, "it loops, and without its source nobody can see for how long: write it in a file")
    inner = [_check_body(title, kind, helper, (*callers, body)) for helper in helpers(body)]
    rounds *= max(inner, default=1)
    if rounds > MOST_ROUNDS:
        refuse(first, f"loops make up to {rounds:,} rounds a call; {MOST_ROUNDS:,} are allowed")
    return rounds


def _definition(body: FunctionType) -> ast.FunctionDef | None:
    """A function as written; None for an expression, and where no source is at hand (made by exec)."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(body)))
    except (OSError, TypeError, SyntaxError):
        return None
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return next((node for node in found if node.name == body.__name__), None)


def _inside(definition: ast.FunctionDef) -> list[ast.AST]:
    """The nodes of a function's body, without its docstring."""
    statements = definition.body
    if isinstance(statements[0], ast.Expr) and isinstance(statements[0].value, ast.Constant):
        statements = statements[1:]
    return [node for statement in statements for node in ast.walk(statement)]


def _objection(node: ast.AST, kind: str, body: Callable[..., Any]) -> str | None:
    for forbidden, reason in _REASONS.items():
        if isinstance(node, forbidden):
            return reason
    if isinstance(node, ast.Constant):
        if isinstance(node.value, float | complex):
            return f"{node.value!r} is not a whole number: keys are int64 on every target, scale it"
        if isinstance(node.value, str | bytes):
            return "a kernel has no strings"
        if isinstance(node.value, int) and node.value >= 1 << 63:
            return f"{node.value} does not fit into the 63 bits of an int64 key"
    if isinstance(node, ast.While):
        return f"{_UNBOUNDED}: use for … in range(most), and break"
    if isinstance(node, ast.For) and rounds_of_loop(node, body) is None:
        return f"{_UNBOUNDED}: loop over a range whose bound is a constant, such as range(min(n, 64))"
    if isinstance(node, ast.NamedExpr):
        return "a kernel has no := : assign in a line of its own"
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
        return "/ gives a floating-point number, which targets round differently: use //"
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return "a kernel has no inner functions: define it outside, with numba.njit"
    if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        return "the view is read-only: use remember(view, index, value) in may_admit"
    if isinstance(node, ast.Call):
        return _objection_to_call(node, kind, body)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and not _is_known(node.id, body):
        return f"{node.id!r} is not defined"
    return None


def _is_known(name: str, body: Callable[..., Any]) -> bool:
    code = body.__code__
    inside = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    return name in inside or name in body.__globals__ or hasattr(builtins, name)


def _objection_to_call(node: ast.Call, kind: str, body: Callable[..., Any]) -> str | None:
    target = node.func
    if not isinstance(target, ast.Name):
        return None
    if target.id in _INDEXED and len(node.args) > 1:
        index, words = node.args[1], _INDEXED[target.id]
        if isinstance(index, ast.Constant) and isinstance(index.value, int) and not 0 <= index.value < words:
            return f"{target.id}() has the indices 0 … {words - 1}, not {index.value}"
    if target.id == "remember" and kind != "may_admit":
        return f"{kind} runs on many lanes at once: only may_admit may remember"
    value = body.__globals__.get(target.id, inspect.getclosurevars(body).nonlocals.get(target.id))
    if value is None:
        if hasattr(builtins, target.id):
            if target.id not in _ALLOWED_BUILTINS:
                return f"{target.id}() does not exist in a kernel"
            return None
        return f"{target.id!r} is not defined; scheduler.view has what a policy may ask"
    ours = (value.__module__ or "").split(".")[0] in OWN_PACKAGES if inspect.isfunction(value) else True
    # in the plain Python copy everything is a Python function
    if not ours and not getattr(config, "DISABLE_JIT", False):
        return f"{target.id}() is a Python function: compile it with numba.njit"
    return None


def place(function: Callable[..., Any]) -> str:
    """Where a function was written."""
    body = getattr(function, "py_func", function)
    return _place(body, body.__code__.co_firstlineno)


def _place(body: Callable[..., Any], line: int) -> str:
    name = body.__code__.co_filename
    return f"line {line}" if name.startswith("<") or "ipykernel" in name else f"{name}:{line}"


def pointers(policy: Policy) -> tuple[Callable[..., Any], ...]:
    """The policy's functions, compiled for the CPU so that each can be passed as a function pointer.

    Raises
    ------
    PolicyError
        One of them does not compile, or does not answer with an integer.
    """
    for kind, function in zip(FUNCTIONS, policy.functions):
        check_answer(policy.name, kind, function, policy.sources.get(kind))
    return policy.functions


def check_answer(
    title: str, kind: str, function: Callable[..., Any], source: Callable[..., Any] | None
) -> None:
    """Compile one function for the CPU; `PolicyError` where that fails or it answers no integer."""
    arguments = SIGNATURES[kind].args
    if arguments in getattr(function, "overloads", {}):
        if source is not None:
            _refuse_stale(title, kind, function, source)
        return
    if source is not None:
        _frozen[function] = captured(source)
        _compile_as_written(title, kind, _inner(function), source)
    function.compile(arguments)  # type: ignore[attr-defined]


# What each compiled function saw of the values around it: they are part of its machine code.
_frozen: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


def captured(function: Callable[..., Any]) -> dict[str, Any]:
    """The values around a function that it uses, by their names; arrays are copied."""
    found = inspect.getclosurevars(getattr(function, "py_func", function))
    values = {**found.globals, **found.nonlocals}
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def _refuse_stale(title: str, kind: str, function: Callable[..., Any], source: Callable[..., Any]) -> None:
    """`PolicyError` if a value that was compiled in has changed since."""
    for name, before in _frozen.get(function, {}).items():
        now = captured(source).get(name)
        if now is before or (
            isinstance(now, _VALUES) and type(now) is type(before) and np.array_equal(now, before)
        ):
            continue
        told = f" ({before!r} then, {now!r} now)" if isinstance(before, int) else ""
        raise PolicyError(
            f"policy {title!r}, {kind}, {place(source)}: {name!r} has changed since it was compiled{told}: "
            "define the policy again, or make it a parameter"
        )


_VALUES = (int, float, str, tuple, np.ndarray, np.generic)


def _compile_as_written(title: str, kind: str, inner: Any, source: Callable[..., Any]) -> None:
    """Compile a function of ``(view, request)`` by itself: errors then name its own lines."""
    body = getattr(source, "py_func", source)
    borrowed_view.compile((WORDS, WORDS))
    view = borrowed_view.overloads[(WORDS, WORDS)].signature.return_type
    arguments = (view,) if kind in ONE_ARGUMENT else (view, types.int64)
    try:
        inner.compile(arguments)
    except (errors.NumbaError, AttributeError) as error:  # the second: of a module that a policy names
        text = str(error)
        lines = [int(number) for number in _LINE_OF_ERROR.findall(text)]
        own = [number for number in lines if number >= body.__code__.co_firstlineno]
        where = _place(body, own[-1] if own else body.__code__.co_firstlineno)
        raise PolicyError(f"policy {title!r}, {kind}, {where}: {_reason_of(text)}") from error
    answer = inner.overloads[arguments].signature.return_type
    signed = isinstance(answer, types.Integer) and getattr(answer, "signed", True)
    if not signed and not isinstance(answer, types.Boolean):
        raise PolicyError(
            f"policy {title!r}, {kind}, {_place(body, body.__code__.co_firstlineno)}: "
            f"answers {answer}, and must answer a whole number: keys are int64 on every target"
        )


def _reason_of(text: str) -> str:
    """The line of Numba's long message that says what is wrong."""
    for pattern, phrase in _NUMBA_SAYS:
        found = pattern.search(text)
        if found:
            return phrase.format(*found.groups())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(_NUMBA_FRAMES)]
    return (said or lines or ["does not compile"])[0]


_NUMBA_FRAMES = ("Failed in nopython mode pipeline", "File ", "During:", "- Resolution failure")
_LINE_OF_ERROR = re.compile(r'", line (\d+)')
_NUMBA_SAYS = [
    (re.compile(r"NameError: name '(\w+)' is not defined"), "{0!r} is not defined"),
    (re.compile(r"Untyped global name '(\w+)'"), "{0!r} is not something a kernel can use"),
    (re.compile(r"Unknown attribute '(\w+)'"), "the view has no {0!r}; scheduler.view has what to ask"),
    (re.compile(r"No implementation of function (.{1,80}?) found"), "no such operation in a kernel: {0}"),
    (re.compile(r"(Cannot unify .{1,120})"), "{0}"),
]


def _inner(function: Callable[..., Any]) -> Any:
    """The compiled function of ``(view, request)`` that a wrapper of ``(hot, words, request)`` calls."""
    body = getattr(function, "py_func", function)
    return inspect.getclosurevars(body).nonlocals.get("function", function)
