"""Packed weights: each format holds its values exactly, and every tile computes the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from blink_numba.engines.cpu.formats import F32, PANEL
from blink_numba.engines.cpu.kernels import compiled_kernels
from blink_numba.engines.cpu.matmul import TILE_ROWS, tile_rows
from blink_numba.engines.cpu.weights import PANEL_BYTES, pack_matrix, packed_format, panel_bytes
from blink_numba.models.model import StoredTensor, dequantize
from ring.jit import njit

INPUTS, OUTPUTS = 96, 75
FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_1")


@njit
def expand(kernels, kind, panels, at, inputs, out):
    kernels.expand_panel(kind, panels, at, inputs, out)


@njit
def multiply(kernels, rows, kind, panels, at, inputs, x, x_at, out):
    kernels.multiply_panel(rows, kind, panels, at, inputs, x, x_at, out)


def stored(kind: str) -> StoredTensor:
    values = np.random.default_rng(2).standard_normal((OUTPUTS, INPUTS)).astype(np.float32)
    if kind == "f32":
        return StoredTensor(kind, values.shape, values)
    if kind == "f16":
        return StoredTensor(kind, values.shape, values.astype(np.float16))
    if kind == "bf16":
        return StoredTensor(kind, values.shape, (values.view(np.uint32) >> 16).astype(np.uint16))
    return StoredTensor(kind, values.shape, quantize(values, GGMLQuantizationType[kind.upper()]))


def packed(tensor: StoredTensor) -> tuple[int, np.ndarray, int]:
    kind = packed_format(tensor)
    size = panel_bytes(kind, INPUTS)
    panels = np.zeros(-(-OUTPUTS // PANEL) * size, np.uint8)
    row = np.array([kind, OUTPUTS, INPUTS, 0, size], np.int64)
    assert row.shape[0] == PANEL_BYTES + 1
    pack_matrix(tensor, row, panels)
    return kind, panels, size


@pytest.mark.parametrize("name", FORMATS)
def test_expanded_panels_are_the_dequantized_weights(name):
    tensor = stored(name)
    kind, panels, size = packed(tensor)
    weights = np.zeros((-(-OUTPUTS // PANEL) * PANEL, INPUTS), np.float32)
    weights[:OUTPUTS] = dequantize(tensor)
    for panel in range(len(panels) // size):
        out = panels[panel * size : (panel + 1) * size].copy()
        if kind != F32:
            out = np.zeros(panel_bytes(F32, INPUTS), np.uint8)
            expand(compiled_kernels(), kind, panels, panel * size, INPUTS, out)
        expected = weights[panel * PANEL : (panel + 1) * PANEL].T
        np.testing.assert_allclose(
            out.view(np.float32).reshape(INPUTS, PANEL), expected, rtol=1e-7, atol=1e-7
        )


@pytest.mark.parametrize("name", FORMATS)
def test_all_tiles_agree_with_each_other_and_with_numpy(name):
    tensor = stored(name)
    kind, panels, size = packed(tensor)
    x = np.random.default_rng(3).standard_normal((max(TILE_ROWS), INPUTS)).astype(np.float32)
    exact = x.astype(np.float64) @ dequantize(tensor).astype(np.float64).T
    for panel in range(len(panels) // size):
        results = {}
        for rows in TILE_ROWS:
            out = np.zeros(rows * PANEL, np.float32)
            multiply(
                compiled_kernels(),
                rows,
                kind,
                panels,
                panel * size,
                INPUTS,
                x[:rows].T.copy().ravel(),
                0,
                out,
            )
            results[rows] = out.reshape(rows, PANEL)
        tallest = results[max(TILE_ROWS)]
        for rows, result in results.items():
            np.testing.assert_array_equal(result, tallest[:rows])
        width = min(PANEL, OUTPUTS - panel * PANEL)
        expected = exact[:, panel * PANEL : panel * PANEL + width]
        np.testing.assert_allclose(tallest[:, :width], expected, atol=2e-5)


def test_tile_heights_hold_all_rows():
    for rows in range(1, 100):
        assert tile_rows(rows) in TILE_ROWS
        assert tile_rows(rows) >= min(rows, max(TILE_ROWS) - 4)
