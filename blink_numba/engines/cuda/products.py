"""Which matrix product serves: cuBLASLt's fastest, or the own kernel that no batch changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from blink_numba.engines.cuda.gemm import launch_gemm


class Products(Protocol):
    """``y = x wᵀ`` with a `store` of `gemm`: `prepare` every shape first, then `multiply`."""

    def prepare(self, x: Any, weights: Sequence[Any], y: Any, store: str, stream: Any) -> None:
        """Plan a shape; `weights` are matrices of this shape, to be timed with."""
        ...

    def multiply(self, x: Any, w: Any, y: Any, store: str, stream: Any) -> None:
        """Enqueue a product."""
        ...

    def close(self) -> None:
        """Free what was planned."""
        ...


class InvariantProducts:
    """The own kernel: a row's result depends on nothing but the row and the weights."""

    def prepare(self, x: Any, weights: Sequence[Any], y: Any, store: str, stream: Any) -> None:
        self.multiply(x, weights[0], y, store, stream)  # loads the kernel

    def multiply(self, x: Any, w: Any, y: Any, store: str, stream: Any) -> None:
        launch_gemm(x, w, y, store, stream)

    def close(self) -> None:
        """Nothing to free."""
