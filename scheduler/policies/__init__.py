"""The policies that ship, one file each with its source in the literature.

`SHIPPED` names them; `find` also takes ``module:attribute`` and ``file.py:attribute``.
"""

from __future__ import annotations

import importlib
import importlib.util
import traceback
from pathlib import Path

from scheduler.policy import Policy, PolicyError, PolicyNotFound

# name: module of this package; each has one policy, POLICY
SHIPPED = {
    "fcfs": "fcfs",
    "sjf": "shortest_job",
    "srpt": "least_remaining",
    "priority": "priority_aging",
    "edf": "earliest_deadline",
    "mlfq": "multilevel_feedback",
    "vtc": "fair_share",
    "decode-first": "decode_first",
    "prefill-first": "prefill_first",
}

__all__ = ["SHIPPED", "find", "shipped"]


def shipped() -> list[Policy]:
    """All of them, `fcfs` first."""
    return [find(name) for name in SHIPPED]


def find(name: str) -> Policy:
    """A policy by its name.

    Raises
    ------
    PolicyNotFound
        There is none of that name; the message lists those that are.
    PolicyError
        Its file or module cannot be loaded.
    """
    if name in SHIPPED:
        return importlib.import_module(f"scheduler.policies.{SHIPPED[name]}").POLICY
    if ":" not in name:
        raise PolicyNotFound(
            f"no policy named {name!r}: shipped are {', '.join(SHIPPED)}; "
            "your own is named as module:attribute or file.py:attribute"
        )
    where, attribute = name.rsplit(":", 1)
    if not where or not attribute:
        raise PolicyError(
            f"a policy of your own is named module:attribute or file.py:attribute, not {name!r}"
        )
    found = getattr(_load(where), attribute, None)
    if not isinstance(found, Policy):
        raise PolicyError(f"{where} has no policy named {attribute!r}: make one with scheduler.policy.policy")
    return found


def _load(where: str):
    kind = "file" if where.endswith(".py") else "module"
    if kind == "file" and not Path(where).is_file():
        raise PolicyNotFound(f"policy file {where!r} does not exist (looked for in {Path.cwd()})")
    try:
        return _execute(Path(where)) if kind == "file" else importlib.import_module(where)
    except PolicyError:
        raise
    except (Exception, SystemExit) as error:  # whatever a policy's file does, its reader goes on
        missing = kind == "module" and isinstance(error, ModuleNotFoundError)
        refused = PolicyNotFound if missing else PolicyError
        raise refused(f"policy {kind} {where!r} cannot be loaded: {_told(error)}") from error


def _execute(path: Path):
    # Numba imports a function's module by its name: by one that can be imported the file would run twice.
    spec = importlib.util.spec_from_file_location(f"policy {path.stem}", path)
    if spec is None or spec.loader is None:
        raise PolicyError(f"policy file {str(path)!r} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _told(error: BaseException) -> str:
    """An error in a line, with the line of the file that raised it."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    place = f"line {frames[-1].lineno}: " if frames and not frames[-1].filename.startswith("<frozen") else ""
    return f"{place}{type(error).__name__}: {error}"
