"""The grid of captured shapes and the O(1) way from a step's size to its graph.

A table buffer (`ring.sections`) that scheduler and engine share: for each decode batch and
each prefill size the smallest graph that holds it, the largest shape as fallback (a longer
prefill goes in chunks). Every graph has two executables, used in turn: one cannot be
relaunched right after its last kernel's flag was seen.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from graphs.step_io import EngineSpec
from ring.jit import njit, uncounted
from ring.sections import Section, check_buffer, format_buffer, layout, section

TABLE_MAGIC = 0x424C4E4B_47524150  # "BLNKGRAP"
TABLE_VERSION = 1

DECODE, PREFILL = 0, 1  # kinds of graph
EXECS = 2  # executables of a graph, used in turn

DECODE_LOOKUP, PREFILL_LOOKUP, KIND, SHAPE, HANDLE = range(5)


class GraphTable(NamedTuple):
    """Views of the table; int64.

    `decode_lookup` [seats + 1], `prefill_lookup` [largest prefill + 1]: graph for a count of rows or
    tokens. `kind`, `shape` [graphs]. `handle` [graphs * EXECS]: the executable's handle on the device.
    """

    decode_lookup: np.ndarray
    prefill_lookup: np.ndarray
    kind: np.ndarray
    shape: np.ndarray
    handle: np.ndarray


def shapes(spec: EngineSpec) -> list[tuple[int, int]]:
    """(kind, shape) of every graph of an engine, in the table's order."""
    return [(DECODE, batch) for batch in spec.decode_batches] + [
        (PREFILL, size) for size in spec.prefill_tokens
    ]


def make_table(spec: EngineSpec, handles: list[int] | None = None) -> np.ndarray:
    """Words of the table of an engine.

    Parameters
    ----------
    handles : list of int, optional
        Device handles, ``EXECS`` a graph; without them handle ``i`` is ``i``.
    """
    graphs = shapes(spec)
    sections = [
        Section("decode_lookup", spec.seats + 1),
        Section("prefill_lookup", spec.prefill_tokens[-1] + 1),
        Section("kind", len(graphs)),
        Section("shape", len(graphs)),
        Section("handle", len(graphs) * EXECS),
    ]
    words = np.zeros(layout(sections)[1], np.int64)
    format_buffer(words, TABLE_MAGIC, TABLE_VERSION, sections)
    table = table_view(words)
    table.decode_lookup[:] = [bisect_left(spec.decode_batches, n) for n in range(spec.seats + 1)]
    table.prefill_lookup[:] = [
        len(spec.decode_batches) + bisect_left(spec.prefill_tokens, n)
        for n in range(spec.prefill_tokens[-1] + 1)
    ]
    table.kind[:] = [kind for kind, _ in graphs]
    table.shape[:] = [shape for _, shape in graphs]
    if handles is None:
        handles = list(range(len(graphs) * EXECS))
    if len(handles) != len(graphs) * EXECS:
        raise ValueError(f"{len(handles)} handles for {len(graphs)} graphs of {EXECS} executables")
    table.handle[:] = handles
    return words


def check_table(words: np.ndarray) -> None:
    """Raise `ring.sections.BufferError` unless `words` is a graph table."""
    check_buffer(words, TABLE_MAGIC, TABLE_VERSION, "graph table")


@njit
def table_view(words):
    """Named views of a graph table."""
    return GraphTable(
        section(words, DECODE_LOOKUP),
        section(words, PREFILL_LOOKUP),
        section(words, KIND),
        section(words, SHAPE),
        section(words, HANDLE),
    )


@njit(inline="always")
def with_handles(table, handles):
    """The table with its handles in another place, where they are at hand."""
    return GraphTable(table.decode_lookup, table.prefill_lookup, table.kind, table.shape, handles)


@uncounted
def decode_graph(table, rows):
    """Graph of the smallest batch that holds `rows` rows."""
    return table.decode_lookup[min(rows, table.decode_lookup.shape[0] - 1)]


@uncounted
def prefill_graph(table, tokens):
    """Graph of the smallest size that holds `tokens` tokens; the largest if none does."""
    return table.prefill_lookup[min(tokens, table.prefill_lookup.shape[0] - 1)]
