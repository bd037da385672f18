"""`blink-numba verify` as the author of a variant meets it."""

from __future__ import annotations

import pytest

pytest.importorskip("greenlet", reason="the model checker needs greenlet")

import typer
from typer.testing import CliRunner

from blink_numba.verify.cli import verify

POLICY = """
from ring.jit import uncounted
from scheduler.policy import policy
from scheduler.view import arrived_ns

@uncounted
def youngest(view, request):
    return -arrived_ns(view, request)

POLICY = policy(name="youngest", key=youngest)
"""


def run(*words: str):
    program = typer.Typer()
    program.command()(verify)
    result = CliRunner().invoke(program, [*words, "--jobs", "1"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--only", "crsh"), "nearest: crash"),
        (("--only", "nonsense"), "a configuration: reuse, two-requests"),
        (("--variant", "srpt"), "expected policy=NAME"),
        (("--variant", "policy=nope"), "shipped are fcfs"),
        (("--variant", "policy=none.py:POLICY"), "does not exist"),
        (("--replay", "nonsense:11"), "no configuration 'nonsense'"),
        (("--replay", "cancel"), "two hex digits"),
        (("--replay", "cancel:zz"), "two hex digits"),
        (("--replay", "cancel:211"), "two hex digits"),
        (("--replay", "cancel:ff"), "move 1 of 1 is not possible"),
    ],
)
def test_a_wrong_word_is_told_with_its_remedy(words, says):
    code, output = run(*words)
    assert code == 2
    assert says in output


def test_a_policy_of_a_file_gets_the_battery(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(POLICY)
    code, output = run("--variant", f"policy={file}:POLICY", "--only", "rejected")
    assert code == 0, output
    assert "exhausted: true" in output
    assert "2 tasks, 0 failed" in output


def test_a_replay_tells_the_story():
    code, output = run("--replay", "reuse:2121")
    assert code == 0
    assert "front end 0 writes req[0] = incarnation 1, SUBMIT" in output
