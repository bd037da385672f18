"""The tokenizer: text to ids and back."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenizer import cache, chat, formats
from tokenizer.errors import TokenizerError
from tokenizer.kernels.encode import PARSE_SPECIAL, PAST_RAW, encode_text
from tokenizer.normalize import nfc
from tokenizer.reference import split_added
from tokenizer.splitters import GPT2
from tokenizer.stream import Pieces, StreamDecoder
from tokenizer.table_builder import build_tables
from tokenizer.tables import Tables, Workspace
from tokenizer.vocabulary import WRITTEN_SPACE, AddedToken, Vocabulary

#: Bytes of text that a workspace takes at first, and the largest one that is kept for the next text.
_SMALLEST_WORKSPACE = 1 << 16
_LARGEST_KEPT = 1 << 21


@dataclass(frozen=True)
class Encoding:
    """Ids of a text and whether all of it is in them.

    Attributes
    ----------
    ids : ndarray of int32, shape (n,)
    total : int
        Number of ids of the whole text; larger than ``len(ids)`` if `truncated`.
    """

    ids: np.ndarray
    total: int

    @property
    def truncated(self) -> bool:
        """Whether ids were cut off to keep a limit."""
        return len(self.ids) < self.total


class Tokenizer:
    """Exact byte-level BPE over one vocabulary.

    Instances are made by `load` or `byte_level`, are safe to use from several threads, and give the ids
    that the vocabulary's own reference implementation gives.
    """

    def __init__(self, vocabulary: Vocabulary, tables: Tables | None = None) -> None:
        self.vocabulary = vocabulary
        self.tables = tables if tables is not None else build_tables(vocabulary)
        self._idle: list[Workspace] = []
        self._rewrites = vocabulary.normalizer == "NFC" or bool(vocabulary.byte_tokens)
        # Whether added tokens that match raw text could match what rewriting makes of another text.
        self._raw_text_counts = not vocabulary.byte_tokens or any(
            a.lstrip or a.rstrip or " " in a.content or WRITTEN_SPACE in a.content
            for a in vocabulary.added
            if not a.normalized
        )
        self._special = frozenset(a.id for a in vocabulary.added if a.special)
        self._pieces = Pieces(vocabulary.tokens, frozenset())
        self._pieces_without_special = Pieces(vocabulary.tokens, self._special)
        self._id_of: dict[bytes, int] | None = None

    @property
    def vocab_size(self) -> int:
        """Number of ids, the largest id plus one."""
        return self.vocabulary.size

    @property
    def bos_id(self) -> int | None:
        """Id that begins a text, if the vocabulary has one."""
        return self.vocabulary.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end an answer, the declared one first."""
        return self.vocabulary.eos_ids

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the control tokens."""
        return self._special

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the chat template, if the vocabulary has one."""
        return self.vocabulary.chat_template

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one id.

        Raises
        ------
        TokenizerError
            If the vocabulary has no such id.
        """
        return self._pieces.bytes_of(token_id)

    def id_of(self, token: str | bytes) -> int:
        """Id of one token, given as its text or bytes (``"<|im_end|>"``, ``" the"``).

        Raises
        ------
        TokenizerError
            If the vocabulary has no such token.
        """
        if self._id_of is None:
            ids = {t: i for i, t in reversed(list(enumerate(self.vocabulary.tokens))) if t}
            ids.update({a.content.encode(): a.id for a in self.vocabulary.added})
            self._id_of = ids
        try:
            return self._id_of[token.encode(errors="surrogatepass") if isinstance(token, str) else token]
        except KeyError:
            raise TokenizerError(f"the vocabulary has no token {token!r}") from None

    def encode(
        self,
        text: str | bytes,
        *,
        add_special: bool = False,
        parse_special: bool = False,
        max_tokens: int | None = None,
    ) -> np.ndarray:
        """Ids of `text`.

        Parameters
        ----------
        text : str or bytes
            Bytes are UTF-8.
        add_special : bool
            Put the vocabulary's begin and end tokens around the text.
        parse_special : bool
            Let text such as ``<|im_end|>`` become the control token. Leave it off for untrusted text.
            Added tokens that are not control tokens match in either case.
        max_tokens : int, optional
            Keep at most so many ids; `encode_report` tells whether ids were cut off.

        Returns
        -------
        ndarray of int32, shape (n,)

        Raises
        ------
        TokenizerError
            If `text` is not valid Unicode (a lone surrogate, or bytes that are not UTF-8).
        """
        if add_special or max_tokens is not None:
            return self.encode_report(
                text, add_special=add_special, parse_special=parse_special, max_tokens=max_tokens
            ).ids
        data = _utf8(text)
        mode = PARSE_SPECIAL if parse_special else 0
        if self._rewrites and not data.isascii():
            return self._encode_rewritten(data.decode(), mode)
        return self._run(data, mode)

    def encode_report(
        self,
        text: str | bytes,
        *,
        add_special: bool = False,
        parse_special: bool = False,
        max_tokens: int | None = None,
    ) -> Encoding:
        """As `encode`, with the number of ids of the whole text."""
        if max_tokens is not None and max_tokens < 0:
            raise TokenizerError(f"max_tokens must not be negative, got {max_tokens}")
        ids = self.encode(text, parse_special=parse_special)
        if add_special and (self.vocabulary.prefix_ids or self.vocabulary.suffix_ids):
            affixes = self.vocabulary.prefix_ids, ids, self.vocabulary.suffix_ids
            ids = np.concatenate([np.asarray(part, np.int32) for part in affixes])
        if max_tokens is None or max_tokens >= len(ids):
            return Encoding(ids, len(ids))
        return Encoding(ids[:max_tokens].copy(), len(ids))

    def encode_batch(
        self,
        texts: Iterable[str | bytes],
        *,
        add_special: bool = False,
        parse_special: bool = False,
        max_tokens: int | None = None,
        threads: int = 1,
    ) -> list[np.ndarray]:
        """Ids of each of `texts`, encoded by `threads` threads; see `encode`."""
        if isinstance(texts, (str, bytes)):
            raise TokenizerError("texts must be several texts, such as a list; encode() takes one")
        if threads < 1:
            raise TokenizerError(f"threads must be at least 1, got {threads}")

        def encode_some(some: list[str | bytes]) -> list[np.ndarray]:
            return [
                self.encode(t, add_special=add_special, parse_special=parse_special, max_tokens=max_tokens)
                for t in some
            ]

        texts = list(texts)
        if threads == 1 or len(texts) < 2:
            return encode_some(texts)
        # Several parts a thread, so that one with long texts does not keep the others waiting.
        size = max(1, len(texts) // (4 * threads))
        parts = [texts[at : at + size] for at in range(0, len(texts), size)]
        with ThreadPoolExecutor(threads) as pool:
            return [ids for part in pool.map(encode_some, parts) for ids in part]

    def _run(self, data: bytes, mode: int) -> np.ndarray:
        """Ids of UTF-8 `data`, computed in a workspace that no other thread uses meanwhile."""
        try:
            workspace = self._idle.pop()
        except IndexError:
            workspace = Workspace(self.tables, _SMALLEST_WORKSPACE)
        if len(data) > workspace.capacity:
            workspace = Workspace(self.tables, len(data))
        ids = workspace.out[: encode_text(data, workspace.address, mode)].copy()
        if workspace.capacity <= _LARGEST_KEPT:
            self._idle.append(workspace)
        return ids

    def _encode_rewritten(self, text: str, mode: int) -> np.ndarray:
        """Encode with normalisation of what is between the added tokens that match raw text."""
        rewritten = self._rewrite(text)
        if rewritten == text or not self._raw_text_counts:
            return self._run(rewritten.encode(), mode)
        raw = [a for a in self.vocabulary.added if not a.normalized]
        parts = [
            np.array([part], np.int32)
            if isinstance(part, int)
            else self._run(self._rewrite(part).encode(), mode | PAST_RAW)
            for part in split_added(text, raw, mode & PARSE_SPECIAL != 0)
        ]
        return np.concatenate(parts)

    def _rewrite(self, text: str) -> str:
        return text.replace(WRITTEN_SPACE, " ") if self.vocabulary.byte_tokens else nfc(text)

    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = False) -> bytes:
        """Bytes that `ids` stand for, which need not be valid UTF-8."""
        pieces = self._pieces_without_special if skip_special else self._pieces
        ids = ids.tolist() if isinstance(ids, np.ndarray) else ids
        return b"".join([pieces.bytes_of(i) for i in ids])

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text that `ids` stand for; bytes that are not UTF-8 become U+FFFD.

        Raises
        ------
        TokenizerError
            If the vocabulary lacks one of `ids`.
        """
        data = self.decode_bytes(ids, skip_special=skip_special)
        if self.vocabulary.prepend_space and data.startswith(b" "):
            data = data[1:]
        return data.decode(errors="replace")

    def stream_decoder(self, skip_special: bool = True) -> StreamDecoder:
        """Decoder for the ids of one answer, which come one at a time."""
        pieces = self._pieces_without_special if skip_special else self._pieces
        return StreamDecoder(pieces, drop_space=self.vocabulary.prepend_space)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tokenize: bool = True,
        **variables: Any,
    ) -> np.ndarray | str:
        """Prompt of a conversation, as ids or (``tokenize=False``) as text.

        Parameters
        ----------
        messages : sequence of mapping
            Turns, each with ``role`` and ``content``.
        add_generation_prompt : bool
            End with the opening of the assistant's turn.
        tools : sequence of mapping, optional
            JSON schemas of callable functions.
        **variables
            Further names for the template (``enable_thinking=False``, ...).

        Raises
        ------
        TokenizerError
            If the vocabulary has no template, or the template refuses the conversation.
        """
        if self.vocabulary.chat_template is None:
            raise TokenizerError("this vocabulary has no chat template: format the prompt and use encode()")
        prompt = chat.render(
            self.vocabulary.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            variables={**self.vocabulary.template_tokens, **variables},
        )
        return self.encode(prompt, parse_special=True) if tokenize else prompt


def _utf8(text: str | bytes) -> bytes:
    try:
        if isinstance(text, str):
            return text.encode()
        text.decode()
    except UnicodeError as error:
        raise TokenizerError(f"the text is not valid Unicode: {error}") from None
    except AttributeError:
        raise TokenizerError(f"a text must be str or bytes, not {type(text).__name__}") from None
    return text


def load(path: str | Path, *, preset: str | None = None) -> Tokenizer:
    """Tokenizer of a vocabulary file: GGUF, tokenizer.json, tiktoken or tekken, or a model's folder.

    Parameters
    ----------
    path : str or Path
    preset : str, optional
        Encoding of a tiktoken file that is not a published one (`tokenizer.formats.tiktoken.PRESETS`).

    Raises
    ------
    FileNotFoundError
        If there is no vocabulary at `path`.
    VocabularyFormatError, UnknownPreTokenizer
        If it is damaged, or splits text in a way that is not implemented.
    """
    return Tokenizer(*cache.load(formats.locate(Path(path).expanduser()), preset))


def byte_level(special: Sequence[str] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")) -> Tokenizer:
    """Tokenizer with a token for each byte and the `special` tokens after them, for tests and examples.

    It has no merges, so a text has as many ids as bytes. Its chat template is ChatML.
    """
    tokens = [bytes([b]) for b in range(256)] + [s.encode() for s in special]
    added = tuple(AddedToken(256 + i, s) for i, s in enumerate(special))
    no_merges = np.empty((0, 3), np.int32)
    ids = {a.content: a.id for a in added}
    return Tokenizer(
        Vocabulary(
            tokens=tokens,
            merges=no_merges,
            ranks=np.empty(0, np.int32),
            splitter=GPT2,
            added=added,
            bos_id=ids.get("<|endoftext|>"),
            eos_ids=tuple(i for i in (ids.get("<|im_end|>"), ids.get("<|endoftext|>")) if i is not None),
            chat_template=chat.CHATML,
        )
    )
