"""Matrix products by cuBLASLt, planned before capture: algorithm, workspace and layouts fixed.

Only prepared products can be enqueued, so a captured step holds no choice and allocates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blink_numba.engines.cuda._cuda import cuda
from blink_numba.engines.cuda.gemm import ADD_FLOAT32, BF16
from blink_numba.engines.cuda.occupant import Occupant
from graphs._cuda import check, driver
from graphs.capture import capture, instantiate

WORKSPACE_BYTES = 32 << 20  # what cuBLAS recommends for Hopper
CANDIDATES = 8
_TIMED_REPEATS, _TIMED_PRODUCTS = 5, 12

# cudaDataType_t, cublasComputeType_t, cublasOperation_t
_REAL_32F, _REAL_16BF, _COMPUTE_32F, _TRANSPOSE = 0, 14, 68, 1


@dataclass(frozen=True)
class ProductShape:
    """``y[rows, columns] = x[rows, k] w[columns, k]ᵀ``, and what becomes of the sum (`gemm`)."""

    rows: int
    columns: int
    k: int
    store: str


@dataclass
class _Plan:
    description: int
    w_layout: int
    x_layout: int
    y_layout: int
    algorithm: np.ndarray  # cublasLtMatmulAlgo_t
    beta: np.ndarray
    milliseconds: float | None


class CublasLt:
    """Planned products on one handle and one workspace; one may run at a time.

    Raises
    ------
    RuntimeError
        When nvmath-python or cuBLAS is not installed.
    """

    def __init__(self) -> None:
        try:
            from nvmath.bindings import cublasLt
        except ImportError as error:
            raise RuntimeError(
                "the CUDA engine's matrix products need nvmath-python and nvidia-cublas: "
                "pip install 'blink-numba[cuda]' (or use --batch-invariant, which needs neither)"
            ) from error
        self._lt = cublasLt
        self._handle = cublasLt.create()
        self._workspace = cuda.device_array(WORKSPACE_BYTES, np.uint8)
        self._alpha = np.ones(1, np.float32)
        self._plans: dict[ProductShape, _Plan] = {}
        self._occupant = Occupant()

    def prepare(self, x: Any, weights: Sequence[Any], y: Any, store: str, stream: Any) -> None:
        """Plan a product of these arrays' shapes: the fastest of the library's candidates beside a scheduler.

        Parameters
        ----------
        x : device uint16[rows, k]
        weights : sequence of device uint16[columns, k]
            Matrices of this shape; some are taken in turn, so that none is timed out of the cache.
        y : device uint16 or float32[rows, columns]
            Overwritten.

        Raises
        ------
        RuntimeError
            When the library has no algorithm for the shape.
        """
        shape = _shape_of(x, weights[0], store)
        if shape in self._plans:
            return
        plan = self._describe(shape)
        timed: list[tuple[np.ndarray, tuple]] = []
        for result in self._candidates(plan):
            plan.algorithm = np.ascontiguousarray(result["algo"]).reshape(1)
            graph = self._graph(plan, x, weights, y, stream)
            if graph is not None:
                timed.append((plan.algorithm, graph))
        if not timed:
            raise RuntimeError(f"cuBLASLt has no algorithm for the product {shape}")
        events = cuda.event(), cuda.event()
        with self._occupant.resident():
            times = [_time(executable, stream, events) for _, (_, executable) in timed]
        best = int(np.argmin(times))
        plan.milliseconds, plan.algorithm = times[best], timed[best][0]
        for _, (graph, executable) in timed:
            driver.cuGraphExecDestroy(executable)
            driver.cuGraphDestroy(graph)
        self._plans[shape] = plan

    def multiply(self, x: Any, w: Any, y: Any, store: str, stream: Any) -> None:
        """Enqueue a prepared product."""
        plan = self._plans.get(_shape_of(x, w, store))
        if plan is None:
            raise RuntimeError(f"product {_shape_of(x, w, store)} was not prepared before capture")
        self._enqueue(plan, x, w, y, stream)

    def _describe(self, shape: ProductShape) -> _Plan:
        """Row-major ``y = x wᵀ`` is column-major ``yᵀ = w xᵀ``: w is the first operand, transposed."""
        lt = self._lt
        description = lt.matmul_desc_create(_COMPUTE_32F, _REAL_32F)
        transpose = np.array([_TRANSPOSE], np.int32)
        lt.matmul_desc_set_attribute(
            description, int(lt.MatmulDescAttribute.TRANSA), transpose.ctypes.data, transpose.nbytes
        )
        out_type = _REAL_16BF if shape.store == BF16 else _REAL_32F
        return _Plan(
            description,
            lt.matrix_layout_create(_REAL_16BF, shape.k, shape.columns, shape.k),
            lt.matrix_layout_create(_REAL_16BF, shape.k, shape.rows, shape.k),
            lt.matrix_layout_create(out_type, shape.columns, shape.rows, shape.columns),
            np.empty(0, np.uint8),
            np.array([1.0 if shape.store == ADD_FLOAT32 else 0.0], np.float32),
            None,
        )

    def _candidates(self, plan: _Plan) -> np.ndarray:
        lt = self._lt
        preference = lt.matmul_preference_create()
        limit = np.array([WORKSPACE_BYTES], np.uint64)
        lt.matmul_preference_set_attribute(
            preference, int(lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES), limit.ctypes.data, limit.nbytes
        )
        results = np.zeros(CANDIDATES, lt.matmul_heuristic_result_dtype)
        found = np.zeros(1, np.int32)
        try:
            lt.matmul_algo_get_heuristic(
                self._handle, plan.description, plan.w_layout, plan.x_layout, plan.y_layout, plan.y_layout,
                preference, CANDIDATES, results.ctypes.data, found.ctypes.data,
            )  # fmt: skip
        finally:
            lt.matmul_preference_destroy(preference)
        return results[: found[0]]

    def _enqueue(self, plan: _Plan, x: Any, w: Any, y: Any, stream: Any) -> None:
        out = _pointer(y)
        self._lt.matmul(
            self._handle, plan.description, self._alpha.ctypes.data,
            _pointer(w), plan.w_layout, _pointer(x), plan.x_layout,
            plan.beta.ctypes.data, out, plan.y_layout, out, plan.y_layout,
            plan.algorithm.ctypes.data, _pointer(self._workspace), WORKSPACE_BYTES, int(stream),
        )  # fmt: skip

    def _graph(
        self, plan: _Plan, x: Any, weights: Sequence[Any], y: Any, stream: Any
    ) -> tuple[Any, Any] | None:
        """A candidate's products as a graph and its executable, None if the library cannot run it after all.

        A graph of several is timed: launched one by one, the host would be measured.
        """
        try:
            self._enqueue(plan, x, weights[0], y, stream)
            stream.synchronize()
        except self._lt.cuBLASLtError:
            return None
        turns = [weights[index % len(weights)] for index in range(_TIMED_PRODUCTS)]

        def enqueue() -> None:
            for w in turns:
                self._enqueue(plan, x, w, y, stream)

        graph = capture(enqueue, stream, "timed products")
        return graph, instantiate(graph, stream, "timed products", device_launch=False)

    def close(self) -> None:
        """Free the handle and the descriptions. No captured product may run again."""
        for plan in self._plans.values():
            for layout in (plan.w_layout, plan.x_layout, plan.y_layout):
                self._lt.matrix_layout_destroy(layout)
            self._lt.matmul_desc_destroy(plan.description)
        self._plans.clear()
        if self._handle:
            self._lt.destroy(self._handle)
            self._handle = 0


def _time(executable: Any, stream: Any, events: tuple[Any, Any]) -> float:
    """Median milliseconds of a product of a graph of `_TIMED_PRODUCTS`."""
    times = []
    for _ in range(_TIMED_REPEATS):
        events[0].record(stream)
        check(driver.cuGraphLaunch(executable, int(stream)), "timing products")
        events[1].record(stream)
        events[1].synchronize()
        times.append(events[0].elapsed_time(events[1]) / _TIMED_PRODUCTS)
    return float(np.median(times))


def _shape_of(x: Any, w: Any, store: str) -> ProductShape:
    return ProductShape(x.shape[0], w.shape[0], x.shape[1], store)


def _pointer(array: Any) -> int:
    return int(array.__cuda_array_interface__["data"][0])
