"""The engine of the model, and what its answers must be.

A token is a function of every token before it, in order, and the engine takes these from the
cache blocks that the block table names: a wrong block, a wrong position or a token of another
request gives another answer.
"""

from __future__ import annotations

VOCAB = 1000
EOS = 1


def next_token(history: list[int]) -> int:
    """The token after a history."""
    total = 0
    for position, token in enumerate(history):
        total += (2 * position + 3) * (token + 5)
    return 2 + total % (VOCAB - 2)


def record_of(token: int) -> list[int]:
    """The packed pairs of a token: they tell which."""
    return [token << 32 | 1, (token + 1) << 32 | token]


def prompt_of(slot: int, incarnation: int, length: int) -> list[int]:
    """The prompt that a slot's incarnation has: different for each."""
    first = 2 + (slot * 131 + (incarnation & 0x3FF) * 17) % (VOCAB - 2)
    return [2 + (first + 59 * k) % (VOCAB - 2) for k in range(length)]


def answer_of(slot: int, incarnation: int, prompt: int, tokens: int) -> list[int]:
    """The whole answer to that prompt."""
    history = prompt_of(slot, incarnation, prompt)
    for _ in range(tokens):
        history.append(next_token(history))
    return history[prompt:]
