"""Streaming decode: token ids one at a time to text in whole characters."""

import codecs
from collections.abc import Iterable

from tokenizer.errors import TokenizerError

_NEW_DECODER = codecs.getincrementaldecoder("utf-8")


class Pieces(dict[int, str | None]):
    """Text of each id that is whole characters by itself, None for others; filled as ids are looked up.

    Parameters
    ----------
    tokens : list of bytes
        Bytes of each id.
    left_out : frozenset of int
        Ids that decode to nothing.
    """

    def __init__(self, tokens: list[bytes], left_out: frozenset[int]) -> None:
        super().__init__()
        self._tokens = tokens
        self._left_out = left_out

    def __missing__(self, token_id: int) -> str | None:
        try:
            text = self.bytes_of(token_id).decode()
        except UnicodeDecodeError:
            text = None
        self[int(token_id)] = text
        return text

    def bytes_of(self, token_id: int) -> bytes:
        """Bytes that `token_id` decodes to.

        Raises
        ------
        TokenizerError
            If the vocabulary has no such id.
        """
        try:
            if 0 <= token_id < len(self._tokens):
                return b"" if token_id in self._left_out else self._tokens[token_id]
        except TypeError:
            raise TokenizerError(f"a token id must be an integer, got {token_id!r}") from None
        raise TokenizerError(f"token id {token_id} is not in the vocabulary of {len(self._tokens)} ids")


class StreamDecoder:
    """Turns the ids of one answer into text as they come.

    Bytes of an unfinished character wait for the next token, so that every returned piece is whole UTF-8
    and the pieces joined are what decoding all ids at once gives; invalid bytes become U+FFFD.

    Parameters
    ----------
    pieces : Pieces
        Texts and bytes of the ids.
    drop_space : bool
        Leave out a space at the start of the answer.
    """

    __slots__ = ("_decoder", "_drop_space", "_pending", "_pieces", "_space_next")

    def __init__(self, pieces: Pieces, drop_space: bool = False) -> None:
        self._pieces = pieces
        self._decoder = _NEW_DECODER("replace")
        self._drop_space = drop_space
        self.flush()

    def push(self, token_id: int) -> str:
        """Text that `token_id` completes, possibly empty.

        Raises
        ------
        TokenizerError
            If the vocabulary has no such id.
        """
        if not self._pending:
            text = self._pieces[token_id]
            if text is not None:
                return text
        return self._push_bytes(self._pieces.bytes_of(token_id))

    def push_many(self, ids: Iterable[int]) -> str:
        """Text that `ids` complete, in order."""
        return "".join([self.push(i) for i in ids])

    def flush(self) -> str:
        """Text of the bytes still waiting, as U+FFFD; the decoder can then take another answer."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        # Whether the next token must not take the short way of `push`, and why.
        self._pending = self._space_next = self._drop_space
        return text

    def _push_bytes(self, data: bytes) -> str:
        if self._space_next and data:
            data = data.removeprefix(b" ")
            self._space_next = False
        text = self._decoder.decode(data)
        self._pending = self._space_next or bool(self._decoder.getstate()[0])
        return text
