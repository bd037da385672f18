"""The sibling packages have short names that other distributions may own too: look before use."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

SIBLINGS = ("ring", "scheduler", "graphs", "rdma", "tokenizer")


class ShadowedPackageError(ImportError):
    """Another distribution's package stands before one of ours on the import path."""


def check_siblings(home: Path | None = None) -> None:
    """Raise `ShadowedPackageError` unless every sibling package lies beside `blink_numba`.

    Parameters
    ----------
    home : Path, optional
        Folder that should hold them; the parent of this package by default.
    """
    home = (home or Path(__file__).resolve().parent.parent).resolve()
    for name in SIBLINGS:
        spec = find_spec(name)
        if spec is None:
            raise ShadowedPackageError(
                f"blink-numba is incomplete: its package {name!r} is missing beside {home / 'blink_numba'}. "
                "Install it again."
            )
        places = [Path(place).resolve() for place in spec.submodule_search_locations or ()]
        if home / name not in places:
            found = spec.origin or (str(places[0]) if places else "an unknown place")
            raise ShadowedPackageError(
                f"the package {name!r} that Python finds is {found}, not blink-numba's own in {home / name}. "
                f"Uninstall the distribution that brings it, or put {home} first on the import path."
            )
