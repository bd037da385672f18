"""The tokenizer: text to ids and back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenizer import chat, formats
from tokenizer.errors import TokenizerError
from tokenizer.reference import ReferenceBPE
from tokenizer.splitters import GPT2
from tokenizer.stream import Pieces, StreamDecoder
from tokenizer.vocabulary import AddedToken, Vocabulary


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

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._bpe = ReferenceBPE(vocabulary)
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
            return self._id_of[token.encode() if isinstance(token, str) else token]
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
        return self.encode_report(
            text, add_special=add_special, parse_special=parse_special, max_tokens=max_tokens
        ).ids

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
        ids = self._bpe.encode(_text(text), parse_special=parse_special)
        if add_special:
            ids = [*self.vocabulary.prefix_ids, *ids, *self.vocabulary.suffix_ids]
        return Encoding(np.array(ids[:max_tokens], np.int32), len(ids))

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
        if threads < 1:
            raise TokenizerError(f"threads must be at least 1, got {threads}")
        return [
            self.encode(t, add_special=add_special, parse_special=parse_special, max_tokens=max_tokens)
            for t in texts
        ]

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
        return self.decode_bytes(ids, skip_special=skip_special).decode(errors="replace")

    def stream_decoder(self, skip_special: bool = True) -> StreamDecoder:
        """Decoder for the ids of one answer, which come one at a time."""
        return StreamDecoder(self._pieces_without_special if skip_special else self._pieces)

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


def _text(text: str | bytes) -> str:
    try:
        if isinstance(text, bytes):
            return text.decode()
        text.encode()
    except UnicodeError as error:
        raise TokenizerError(f"the text is not valid Unicode: {error}") from None
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
    return Tokenizer(formats.read(formats.locate(Path(path).expanduser()), preset))


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
