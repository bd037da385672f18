"""The byte alphabet: GPT-2's one printable character for each byte, in which vocabularies spell tokens.

Source: the ``bytes_to_unicode`` table of GPT-2's release, used since by every byte-level vocabulary.
"""


def _alphabet() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(other)}


BYTE_TO_CHAR: dict[int, str] = _alphabet()
CHAR_TO_BYTE: dict[str, int] = {c: b for b, c in BYTE_TO_CHAR.items()}


def to_bytes(token: str) -> bytes:
    """Bytes that `token` spells; its UTF-8 if a character is outside the alphabet (added tokens)."""
    try:
        return bytes([CHAR_TO_BYTE[c] for c in token])
    except KeyError:
        return token.encode()


def to_chars(token: bytes) -> str:
    """Spelling of `token` in the alphabet."""
    return "".join([BYTE_TO_CHAR[b] for b in token])
