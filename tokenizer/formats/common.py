"""What several vocabulary formats share."""

from collections.abc import Iterable

import numpy as np

from tokenizer.errors import VocabularyFormatError
from tokenizer.vocabulary import AddedToken

#: Special tokens that end an answer in the known model families, whatever a file declares as its one EOS.
END_OF_GENERATION = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|eom|>",
        "<|return|>",
        "<end_of_turn>",
        "</s>",
        "<｜end▁of▁sentence｜>",
        "<|end▁of▁sentence|>",
    }
)


def end_of_generation(declared: Iterable[int | None], added: Iterable[AddedToken]) -> tuple[int, ...]:
    """Ids that end an answer: the declared ones first, then special tokens known to end a turn."""
    ids = [i for i in declared if i is not None]
    ids += [a.id for a in added if a.special and a.content in END_OF_GENERATION]
    return tuple(dict.fromkeys(ids))


def require_bytes(tokens: list[bytes]) -> None:
    """Raise unless `tokens`, which are those of tiktoken ranks, differ and hold every byte."""
    known = set(tokens)
    if len(known) < len(tokens):
        raise VocabularyFormatError("a token has two ranks")
    missing = [b for b in range(256) if bytes([b]) not in known]
    if missing:
        raise VocabularyFormatError(f"byte 0x{missing[0]:02X} has no token: is the file cut off?")


def merges_from_ranks(tokens: list[bytes], first_id: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Merges that tiktoken ranks stand for: any two adjacent tokens whose join is a token may merge.

    Parameters
    ----------
    tokens : list of bytes
        Token of each rank.
    first_id : int
        Id of rank 0.

    Returns
    -------
    merges : ndarray of int32, shape (n, 3)
        Every split of every token in two tokens.
    ranks : ndarray of int32, shape (n,)
        Rank of the join.
    """
    rank_of = {token: i for i, token in enumerate(tokens) if token}
    left: list[int] = []
    right: list[int] = []
    rank: list[int] = []
    get = rank_of.get
    for i, token in enumerate(tokens):
        for cut in range(1, len(token)):
            a = get(token[:cut])
            if a is not None:
                b = get(token[cut:])
                if b is not None:
                    left.append(a)
                    right.append(b)
                    rank.append(i)
    ranks = np.array(rank, np.int32)
    merges = np.stack([np.array(left, np.int32), np.array(right, np.int32), ranks], axis=1) + first_id
    return merges.astype(np.int32), ranks
