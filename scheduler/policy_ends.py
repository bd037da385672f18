"""Whether a policy comes to an end: its loops have a bound that the source shows, and nothing calls itself.

A function that does not end holds up the scheduler and everybody's requests with it, and on a GPU
nothing can take the kernel away from it. So a bound is asked for that can be read off the source, of the
policy's functions and of those that they call.
"""

from __future__ import annotations

import ast
import dis
import inspect
import operator
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

MOST_ROUNDS = 1 << 16  # of nested loops together, through all calls

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
}  # fmt: skip


def loops_unseen(body: FunctionType) -> bool:
    """Whether a function without source at hand has a loop."""
    return any("JUMP_BACKWARD" in step.opname for step in dis.get_instructions(body))


def rounds_of_loop(loop: ast.For, body: FunctionType) -> int | None:
    """How often a loop's body runs at most, None if its source does not show that."""
    over = loop.iter
    if isinstance(over, ast.Tuple):
        return len(over.elts)
    if isinstance(over, ast.Name):
        value = _constant(over, body)
        return len(value) if isinstance(value, tuple | np.ndarray) else None
    arguments = _arguments(over, "range", body)
    if not arguments:
        return None
    if len(arguments) == 1:
        arguments = [ast.Constant(0), *arguments]
    step = _exact(arguments[2], body) if len(arguments) > 2 else 1
    if not step:
        return None
    first, last = arguments[:2] if step > 0 else (arguments[1], arguments[0])
    low, high = _exact(first, body), _most(last, body)
    return None if low is None or high is None else max(0, -((low - high) // abs(step)))


def deepest(statements: list[ast.stmt], body: FunctionType) -> int:
    """Rounds of the loops in each other that run most often; all of them have a bound."""
    most = 1
    for statement in statements:
        inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
        for case in getattr(statement, "cases", ()):
            inner += case.body
        own = (rounds_of_loop(statement, body) or 0) if isinstance(statement, ast.For) else 1
        most = max(most, own * deepest(inner, body))
    return most


def _most(node: ast.expr, body: FunctionType) -> int | None:
    """The largest value that a whole number may have, as far as its source shows it."""
    bounds = [_most(argument, body) for argument in _arguments(node, "min", body)]
    if any(bound is not None for bound in bounds):
        return min(bound for bound in bounds if bound is not None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        divisor = _exact(node.right, body)
        return divisor - 1 if divisor and divisor > 0 else None
    return _exact(node, body)


def _exact(node: ast.expr, body: FunctionType) -> int | None:
    """The value of a whole number that is known when the policy is compiled."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _exact(node.operand, body)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _exact(node.left, body), _exact(node.right, body)
        return None if left is None or right is None else _ARITHMETIC[type(node.op)](left, right)
    for argument in _arguments(node, "len", body):
        value = _constant(argument, body)
        return len(value) if isinstance(value, tuple | np.ndarray) else None
    value = node.value if isinstance(node, ast.Constant) else _constant(node, body)
    return int(value) if isinstance(value, int | np.integer) else None


def _constant(node: ast.expr, body: FunctionType) -> Any:
    """What stands for a name outside the function, or for a name in a module; None if nothing does."""
    if isinstance(node, ast.Attribute):
        module = _constant(node.value, body)
        return getattr(module, node.attr, None) if isinstance(module, ModuleType) else None
    if not isinstance(node, ast.Name) or node.id in body.__code__.co_varnames:
        return None
    return inspect.getclosurevars(body).nonlocals.get(node.id, body.__globals__.get(node.id))


def _arguments(node: ast.expr, name: str, body: FunctionType) -> list[ast.expr]:
    """What a node that calls a builtin gives it, one by one; nothing if it calls something else."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != name:
        return []
    if name in body.__globals__ or any(isinstance(argument, ast.Starred) for argument in node.args):
        return []
    return node.args
