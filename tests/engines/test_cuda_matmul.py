"""The own matrix product, in lockstep and on a GPU: right, and the same in every tile."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba.cuda.dispatcher", reason="needs the numba-cuda target")

from blink_numba.engines.cuda import gemm
from blink_numba.engines.cuda.weights import to_bf16
from tests.cuda_reference import as_float

RNG = np.random.default_rng(1)


def product(run, tile_m: int, store: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """``x wᵀ`` by the kernel, on top of sevens."""
    rows, columns = x.shape[0], w.shape[0]
    y = np.full((rows, columns), 7, np.uint16 if store == gemm.BF16 else np.float32)
    grid = (-(-columns // gemm.TILE_N), -(-rows // tile_m))
    run(gemm.gemm_kernel(tile_m, store), grid, gemm.THREADS, (x, w, y))
    return y


@pytest.mark.parametrize("tile_m", [gemm.SMALL_ROWS, gemm.LARGE_ROWS])
@pytest.mark.parametrize(("rows", "columns", "k"), [(5, 24, 40), (16, 64, 64), (67, 70, 200), (3, 67, 8)])
def test_product_is_right_with_ragged_edges(run, tile_m, rows, columns, k):
    x, w = to_bf16(RNG.standard_normal((rows, k))), to_bf16(RNG.standard_normal((columns, k)))
    expected = as_float(x).astype(np.float64) @ as_float(w).astype(np.float64).T
    np.testing.assert_allclose(product(run, tile_m, gemm.FLOAT32, x, w), expected, rtol=1e-5, atol=1e-4)


def test_stores(run):
    x, w = to_bf16(RNG.standard_normal((3, 16))), to_bf16(RNG.standard_normal((8, 16)))
    plain = product(run, 16, gemm.FLOAT32, x, w)
    np.testing.assert_array_equal(product(run, 16, gemm.BF16, x, w), to_bf16(plain))
    np.testing.assert_array_equal(product(run, 16, gemm.ADD_FLOAT32, x, w), plain + np.float32(7))


@pytest.mark.parametrize("store", [gemm.FLOAT32, gemm.BF16, gemm.ADD_FLOAT32])
def test_an_odd_number_of_columns_leaves_the_next_row_alone(run, store):
    """The last pair of a row has one column: where the other would lie the next row begins."""
    x, w = to_bf16(RNG.standard_normal((3, 16))), to_bf16(RNG.standard_normal((7, 16)))
    even = product(run, 16, store, x, np.ascontiguousarray(np.concatenate([w, w[:1]])))
    np.testing.assert_array_equal(product(run, 16, store, x, w), even[:, :7])


def test_a_row_does_not_depend_on_tile_place_or_neighbours(run):
    x, w = to_bf16(RNG.standard_normal((70, 96))), to_bf16(RNG.standard_normal((32, 96)))
    whole = product(run, gemm.LARGE_ROWS, gemm.FLOAT32, x, w)
    for row in (0, 13, 66):
        alone = product(run, gemm.SMALL_ROWS, gemm.FLOAT32, np.ascontiguousarray(x[row : row + 1]), w)
        np.testing.assert_array_equal(alone[0], whole[row])


def test_bf16_rounding_is_to_nearest_even():
    # bf16 has 7 bits after the point: 1 + 1/256 lies half way between 1 and 1 + 1/128
    values = np.array([1.0, 1 + 1 / 256, 1 + 3 / 256, 1 + 1 / 256 + 1e-6, -2.5], np.float32)
    expected = np.array([1.0, 1.0, 1 + 4 / 256, 1 + 2 / 256, -2.5], np.float32)
    np.testing.assert_array_equal(as_float(to_bf16(values)), expected)
