"""Readers of vocabulary files, each from a file to a `Vocabulary`: GGUF, tokenizer.json, tiktoken, tekken."""

from pathlib import Path

from tokenizer.errors import TokenizerError, VocabularyFormatError
from tokenizer.formats import gguf, huggingface, tekken, tiktoken
from tokenizer.vocabulary import Vocabulary

#: Files of a Hugging Face folder that hold a vocabulary, in order of preference.
FOLDER_FILES = ("tokenizer.json", "tekken.json", "tokenizer.model")


def locate(path: Path) -> Path:
    """Vocabulary file at `path`, which may be the file itself or a model's folder.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    if path.is_dir():
        for name in FOLDER_FILES:
            if (path / name).is_file():
                return path / name
        raise FileNotFoundError(f"{path} has none of {', '.join(FOLDER_FILES)}")
    if not path.is_file():
        raise FileNotFoundError(
            f"no vocabulary at {path}: give a GGUF, tokenizer.json, tiktoken or tekken file"
        )
    return path


def read(path: Path, preset: str | None = None) -> Vocabulary:
    """Vocabulary in the file `path`, whose format is recognised by its content.

    Parameters
    ----------
    preset : str, optional
        Name of a tiktoken encoding (see `formats.tiktoken.PRESETS`): such files hold neither pattern nor
        special tokens. Files whose content is known need none.

    Raises
    ------
    TokenizerError
        If the file is no vocabulary, a damaged one, or one that is not implemented.
    """
    try:
        return _read(path, preset)
    except TokenizerError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        # Readers take a file's parts for what its format says; a part of another type ends here.
        raise VocabularyFormatError(
            f"{path} is not laid out as its format demands ({type(error).__name__}: {error}): "
            "fetch or convert it anew"
        ) from error


def _read(path: Path, preset: str | None) -> Vocabulary:
    with path.open("rb") as f:
        head = f.read(4096)
    if head[:4] == gguf.MAGIC:
        return gguf.read(path)
    if head.lstrip()[:1] == b"{":
        return tekken.read(path) if tekken.recognises(head) else huggingface.read(path)
    if tiktoken.recognises(head):
        return tiktoken.read(path, preset)
    raise VocabularyFormatError(f"{path} is neither GGUF, tokenizer.json, tiktoken nor tekken")
