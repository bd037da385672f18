"""A vocabulary as data: token bytes, merges, added tokens, and how its text is cut into words."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from tokenizer.normalize import nfc
from tokenizer.splitters import Splitter

#: How vocabularies with byte fallback spell a space, which they cannot tell from it.
WRITTEN_SPACE = "\u2581"


@dataclass(frozen=True)
class AddedToken:
    """A token that is matched in the raw text instead of being merged from bytes.

    Attributes
    ----------
    id : int
    content : str
    special : bool
        A control token: text matches it only with ``parse_special=True`` and decoding may skip it.
    lstrip, rstrip : bool
        White space on its left or right belongs to it.
    single_word : bool
        Matches only where no word character stands next to it.
    normalized : bool
        Matches the text after normalisation instead of the raw text.
    ordinary : bool
        It is a token of the model, too: text that does not match it may merge to it.
    """

    id: int
    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    ordinary: bool = False


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Everything that decides how text becomes ids and back.

    Attributes
    ----------
    tokens : list of bytes
        Bytes of each id; empty for an id without a token.
    merges : ndarray of int32, shape (n, 3)
        ``(left, right, merged)`` ids, the rank of a merge being ``ranks[i]``.
    ranks : ndarray of int32, shape (n,)
        Ascending; lower merges first. Splits of one tiktoken token share its rank.
    splitter : Splitter
    added : tuple of AddedToken
    ignore_merges : bool
        A word that is a token as a whole is that token, whatever the merges say.
    byte_tokens : tuple of int
        Ids of the 256 ``<0x..>`` tokens of a vocabulary with byte fallback: merging starts from characters,
        and a character without a token becomes the tokens of its bytes. Otherwise empty: merging starts
        from bytes, and a byte without a token is dropped.
    prepend_space : bool
        With byte fallback only: a space is put before every text, and one is taken from what is decoded.
    normalizer : str
        ``""`` or ``"NFC"``.
    bos_id, eos_ids, prefix_ids, suffix_ids
        Ids that begin and end a text; ``add_special=True`` puts `prefix_ids` and `suffix_ids` around it.
    chat_template : str or None
        Jinja source.
    """

    tokens: list[bytes]
    merges: np.ndarray
    ranks: np.ndarray
    splitter: Splitter
    added: tuple[AddedToken, ...] = ()
    ignore_merges: bool = False
    byte_tokens: tuple[int, ...] = ()
    prepend_space: bool = False
    normalizer: str = ""
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    chat_template: str | None = None
    template_tokens: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of ids, the largest id plus one."""
        return len(self.tokens)

    def matched_text(self, token: AddedToken) -> str:
        """Text that stands for the added `token`, normalised if the text that it is looked for in is."""
        if not token.normalized:
            return token.content
        if self.byte_tokens:
            return token.content.replace(WRITTEN_SPACE, " ")
        return nfc(token.content) if self.normalizer == "NFC" else token.content

    def with_added(self, added: Iterable[AddedToken]) -> "Vocabulary":
        """This vocabulary with further added tokens, whose ids may be new or those of ordinary tokens."""
        added = tuple(added)
        tokens = list(self.tokens)
        for token in added:
            tokens.extend([b""] * (token.id + 1 - len(tokens)))
            tokens[token.id] = token.content.encode()
        return replace(self, tokens=tokens, added=self.added + added)

    def ids_of_bytes(self) -> dict[bytes, int]:
        """Id of each ordinary token's bytes; added tokens that are no ordinary tokens are left out."""
        added = {a.id for a in self.added if not a.ordinary} | set(self.byte_tokens)
        mergeable = set(self.merges[:, 2].tolist())
        return {
            token: i for i, token in enumerate(self.tokens) if token and (i not in added or i in mergeable)
        }
