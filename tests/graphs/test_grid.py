"""The O(1) table against the definition: the smallest graph that fits, else the largest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.grid import DECODE, EXECS, PREFILL, decode_graph, make_table, prefill_graph, shapes, table_view
from graphs.step_io import EngineSpec

grids = st.sets(st.integers(1, 40), min_size=1, max_size=6).map(lambda s: tuple(sorted(s)))


def spec(batches: tuple[int, ...], tokens: tuple[int, ...]) -> EngineSpec:
    return EngineSpec(
        seats=batches[-1], decode_batches=batches, prefill_tokens=tokens, prefill_sequences=2, block_size=16,
        blocks=8, blocks_per_seat=8, max_model_len=128, vocab_size=100, eos_ids=(1,),
    )  # fmt: skip


def smallest(kind: int, grid: tuple[int, ...], wanted: int, engine: EngineSpec) -> int:
    fitting = [size for size in grid if size >= wanted] or [grid[-1]]
    return shapes(engine).index((kind, fitting[0]))


@given(grids, grids)
def test_every_size_finds_the_smallest_graph_that_holds_it(batches, tokens) -> None:
    engine = spec(batches, tokens)
    table = table_view(make_table(engine))
    for rows in range(1, batches[-1] + 3):
        assert decode_graph(table, rows) == smallest(DECODE, batches, rows, engine)
    for size in range(1, tokens[-1] + 3):
        assert prefill_graph(table, size) == smallest(PREFILL, tokens, size, engine)


def test_handles_are_those_given() -> None:
    engine = spec((1, 2), (16,))
    table = table_view(make_table(engine, [100, 101, 102, 103, 104, 105]))
    assert table.handle.tolist() == [100, 101, 102, 103, 104, 105]
    with pytest.raises(ValueError, match=f"3 graphs of {EXECS}"):
        make_table(engine, [1, 2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seats": 3}, "must equal seats"),
        ({"decode_batches": (2, 1, 4)}, "ascending"),
        ({"prefill_tokens": ()}, "ascending"),
        ({"max_model_len": 1000}, "cannot hold"),
        ({"blocks": 7}, "raise the KV memory"),
    ],
)
def test_specs_that_cannot_work_are_refused(change: dict, message: str) -> None:
    good: dict = {
        "seats": 4, "decode_batches": (1, 2, 4), "prefill_tokens": (16, 64), "prefill_sequences": 2,
        "block_size": 16, "blocks": 8, "blocks_per_seat": 8, "max_model_len": 128, "vocab_size": 100,
        "eos_ids": (1,),
    }  # fmt: skip
    EngineSpec(**good)
    with pytest.raises(ValueError, match=message):
        EngineSpec(**{**good, **change})
