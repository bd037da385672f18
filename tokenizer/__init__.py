"""Exact BPE tokenization: text to ids and back.

`load` reads a vocabulary (GGUF, Hugging Face tokenizer.json, tiktoken, tekken) and gives a `Tokenizer`:
`encode` to an int32 array, `encode_batch` on several threads, `decode`, `stream_decoder` for ids that come
one at a time, `apply_chat_template` for conversations. `byte_level` makes a trivial one for tests.

Ids are those of the vocabulary's reference implementation, or loading fails: a pre-tokenizer that is not
implemented is an `UnknownPreTokenizer`, never a similar split. README.md is the page for people who change
this package; it imports none of its sibling packages.
"""

from tokenizer.errors import TokenizerError, UnknownPreTokenizer, VocabularyFormatError
from tokenizer.stream import StreamDecoder
from tokenizer.tokenizer import Encoding, Tokenizer, byte_level, load
from tokenizer.vocabulary import AddedToken, Vocabulary

__all__ = [
    "AddedToken",
    "Encoding",
    "StreamDecoder",
    "Tokenizer",
    "TokenizerError",
    "UnknownPreTokenizer",
    "Vocabulary",
    "VocabularyFormatError",
    "byte_level",
    "load",
]
