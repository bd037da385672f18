"""The policies that ship, one file each with its source in the literature.

`SHIPPED` names them; `find` also takes ``module:attribute`` and ``file.py:attribute``.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from scheduler.policy import Policy, PolicyError

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
    PolicyError
        There is none of that name; the message lists those that are.
    """
    if name in SHIPPED:
        return importlib.import_module(f"scheduler.policies.{SHIPPED[name]}").POLICY
    if ":" not in name:
        raise PolicyError(
            f"no policy named {name!r}: shipped are {', '.join(SHIPPED)}; "
            "your own is named as module:attribute or file.py:attribute"
        )
    where, attribute = name.rsplit(":", 1)
    found = getattr(_load(where), attribute, None)
    if not isinstance(found, Policy):
        raise PolicyError(f"{where} has no policy named {attribute!r}: make one with scheduler.policy.policy")
    return found


def _load(where: str):
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except ImportError as error:
            raise PolicyError(f"policy module {where!r} cannot be imported: {error}") from error
    path = Path(where)
    if not path.is_file():
        raise PolicyError(f"policy file {where!r} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise PolicyError(f"policy file {where!r} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
