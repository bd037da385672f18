"""The command line: what it lists, how it fails."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from blink_numba import __version__
from blink_numba.bench.report import Report, Row, load, markdown
from blink_numba.cli import app
from blink_numba.cli.bench import names

run = CliRunner().invoke


def test_version_and_help():
    assert run(app, ["--version"]).output.strip() == f"blink-numba {__version__}"
    text = run(app, ["--help"]).output
    for command in ("serve", "generate", "bench", "doctor", "models"):
        assert command in text


def test_serve_has_a_flag_for_every_setting():
    text = run(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    for flag in ("--max-model-len", "--max-num-seqs", "--gpu-memory-utilization", "--served-model-name",
                 "--api-key", "--admin-api-key", "--config", "--log-level", "--no-access-log"):  # fmt: skip
        assert flag in text


@pytest.mark.parametrize("arguments", [["serve", "--port", "99999"], ["serve", "--config", "/no/such.yaml"]])
def test_a_wrong_setting_is_one_line_and_status_2(arguments):
    result = run(app, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_models_lists_names():
    text = run(app, ["models"], env={"COLUMNS": "200"}).output
    assert "smollm2" in text
    assert "tiny" in text


def test_doctor_finds_this_machine_able():
    result = run(app, ["doctor", "--json"])
    findings = {finding["what"]: finding["verdict"] for finding in json.loads(result.output)}
    assert findings["Python"] == "ok"
    assert result.exit_code == int("problem" in findings.values())


def test_benches_are_listed_and_unknown_ones_refused():
    text = run(app, ["bench"], env={"COLUMNS": "200"}).output
    assert {"decode", "frontend", "serve"} <= set(names())
    assert all(name in text for name in names())
    assert run(app, ["bench", "nothing"]).exit_code == 2


def test_the_help_of_a_bench_is_its_own():
    text = run(app, ["bench", "frontend", "--help"], env={"COLUMNS": "200"}).output
    assert "--streams" in text
    assert "--json" in text


def test_rows_know_their_targets():
    assert Row("a", 2.0, "x", target=1.0).ok is True
    assert Row("a", 2.0, "x", target=1.0, better="lower").ok is False
    assert Row("a", 2.0, "x").ok is None
    with pytest.raises(ValueError, match="fields of a row"):
        Row("a", 2.0, "x", ok=True)


def test_a_report_comes_back_from_its_json(tmp_path):
    report = Report("x", [Row("a/b", 3.0, "ms", 2.0, "lower", p99=4.0), Row("c", 1.0, "count")])
    report.write(str(tmp_path / "x.json"))
    again = load(tmp_path / "x.json")
    assert again.as_dict() == report.as_dict()
    assert "| `a/b` | 3 | ms | ≤ 2 | **no** |" in markdown(again)
