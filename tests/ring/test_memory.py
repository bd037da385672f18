"""The ring's file: made whole or not at all, attached safely, removed by its owner only."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest

from ring import layout as at
from ring import memory
from ring.layout import RingGeometry
from ring.memory import RingError, RingMemory, ring_path

GEOMETRY = RingGeometry(slots=32, arena_tokens=256, log_entries=16, flight_entries=16)


@pytest.fixture
def name() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


def make(name: str) -> RingMemory:
    return RingMemory.create(name, GEOMETRY, max_model_len=128, vocab_size=300)


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2],
    )  # fmt: skip


def test_what_one_writes_the_other_reads(name: str) -> None:
    with make(name) as ring, RingMemory.attach(name) as other:
        other.view.req[3] = 42
        assert ring.view.req[3] == 42
        assert other.geometry == GEOMETRY
        assert int(other.view.info[at.I_MAX_MODEL_LEN]) == 128


def test_the_file_is_private_and_goes_with_its_owner(name: str) -> None:
    ring = make(name)
    assert ring_path(name).stat().st_mode & 0o777 == 0o600
    RingMemory.attach(name).close()
    assert ring_path(name).exists(), "an attacher must not remove the ring"
    ring.close()
    assert not ring_path(name).exists()


def test_another_process_that_attaches_and_exits_leaves_the_ring(name: str) -> None:
    with make(name) as ring:
        done = python(
            """
            import sys
            from ring.memory import RingMemory
            RingMemory.attach(sys.argv[1]).view.req[1] = 5
            """,
            name,
        )
        assert done.returncode == 0, done.stderr
        assert ring.view.req[1] == 5
        assert ring_path(name).exists()


def test_a_living_owner_is_named(name: str) -> None:
    with make(name), pytest.raises(RingError, match=f"in use by process {os.getpid()}"):
        make(name)


def test_a_dead_owners_ring_is_replaced(name: str) -> None:
    done = python(
        """
        import os, sys
        from ring.layout import RingGeometry
        from ring.memory import RingMemory
        geometry = RingGeometry(slots=32, arena_tokens=256, log_entries=16, flight_entries=16)
        RingMemory.create(sys.argv[1], geometry, max_model_len=1, vocab_size=1)
        os._exit(0)
        """,
        name,
    )
    assert done.returncode == 0, done.stderr
    assert ring_path(name) in memory.stale_rings()
    with make(name) as ring:
        assert int(ring.view.info[at.I_MAX_MODEL_LEN]) == 128
        assert ring.owner_alive()


def test_a_missing_ring_says_what_to_do(name: str) -> None:
    with pytest.raises(RingError, match="is the engine running"):
        RingMemory.attach(name)


@pytest.mark.parametrize("content", [b"", b"x" * 4096])
def test_a_file_that_is_no_ring_is_named(name: str, content: bytes) -> None:
    path = ring_path(name)
    path.write_bytes(content)
    try:
        with pytest.raises(RingError, match=name):
            RingMemory.attach(name)
    finally:
        path.unlink()


def test_no_room_is_an_error_not_a_signal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RingError, match="no room"):
        make(name)
    assert not list(ring_path(name).parent.glob(f"*{name}*")), "nothing may be left behind"


@pytest.mark.parametrize("bad", ["", "a/b", ".hidden"])
def test_a_name_must_be_a_file_name(bad: str) -> None:
    with pytest.raises(RingError, match="plain file name"):
        ring_path(bad)
