"""What the bench cannot do is said before it measures."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from blink_numba.bench import tokenizer as bench


@pytest.mark.parametrize("plot", ["x.txt", "nowhere/x.svg"])
def test_undrawable_plot(tmp_path: Path, plot: str) -> None:
    with pytest.raises(typer.BadParameter, match="--plot needs"):
        bench.run(plot=str(tmp_path / plot))


def test_no_rounds() -> None:
    app = typer.Typer()
    app.command()(bench.run)
    assert CliRunner().invoke(app, ["--repeats", "0"]).exit_code == 2
