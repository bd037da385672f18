"""What is kept on disk may be damaged, unwritable or made by two processes at once: it costs time only."""

import logging
import random
from pathlib import Path
from typing import Any

import numba
import pytest

from tokenizer import byte_level, cache
from tokenizer.kernels import jit


def _double(x):
    return 2 * x


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the compiled `_double` is kept."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "_announce", lambda why: None)
    return tmp_path


def _run(folder: Path | None) -> int:
    (overload,) = jit._compile(_double, "int64(int64)", folder).overloads.values()
    return overload.entry_point(21)


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_damaged_kernels_are_compiled_anew(folder: Path, ending: str) -> None:
    assert _run(folder) == 42
    (file,) = folder.rglob(f"*.{ending}")
    good = file.read_bytes()
    for damaged in (b"", good[: len(good) // 2], b"\x80\x04junk" * 50):
        file.write_bytes(damaged)
        assert _run(folder) == 42
        assert len(file.read_bytes()) > len(good) // 2


def test_a_full_disk_costs_the_cache_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "save", full)
    assert _run(folder) == 42
    assert not list(folder.rglob("*.nbc"))
    assert _run(None) == 42


def test_a_first_start_says_why_it_takes_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    jit._announce.cache_clear()
    with caplog.at_level(logging.WARNING, "tokenizer"):
        _run(tmp_path)
        assert f"only this once: they are kept in {tmp_path}" in caplog.text
        caplog.clear()
        _run(tmp_path)
        assert not caplog.text
        _run(None)
        assert "set BLINK_NUMBA_CACHE" in caplog.text


def test_no_damage_to_a_vocabulary_cache_goes_unseen(tmp_path: Path) -> None:
    tiny = byte_level()
    file = tmp_path / "a.bin"
    cache.write(file, tiny.vocabulary, tiny.tables)
    good = file.read_bytes()
    header = int.from_bytes(good[8:16], "little") + 32
    rng = random.Random(1)
    for at in [*range(32), *rng.sample(range(32, header), 200), *rng.sample(range(header, len(good)), 50)]:
        file.write_bytes(good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 :])
        with pytest.raises((OSError, ValueError)):
            cache.read(file)
    file.write_bytes(good)
    assert cache.read(file)[0].tokens == tiny.vocabulary.tokens
