"""The figures in the package's README are those of the committed measurement.

``python -m tests.tokenizer.test_readme`` writes the table anew after a new measurement was committed.
"""

import re
from pathlib import Path

import tokenizer
from blink_numba.bench import report

_README = Path(tokenizer.__file__).with_name("README.md")
_TABLE = re.compile(r"(<!-- figures -->\n).*?(<!-- /figures -->)", re.DOTALL)


def _table() -> str:
    (result,) = report.RESULTS.glob("tokenizer-*.json")
    measured = report.load(result)
    measured.rows = [row for row in measured.rows if row.target is not None]
    return f"Measured on {measured.env['machine']}, Python {measured.env['python']}.\n\n" + report.markdown(
        measured
    )


def _with_table(text: str) -> str:
    return _TABLE.sub(lambda m: m.group(1) + _table() + m.group(2), text)


def test_figures_are_the_measured_ones() -> None:
    text = _README.read_text()
    assert _TABLE.search(text)
    assert text == _with_table(text)


if __name__ == "__main__":
    _README.write_text(_with_table(_README.read_text()))
