"""Errors that loading a vocabulary or encoding a text can raise."""


class TokenizerError(ValueError):
    """A vocabulary, a text or an id that the tokenizer cannot take."""


class VocabularyFormatError(TokenizerError):
    """A file is not a vocabulary in a format known here, or is damaged."""


class UnknownPreTokenizer(TokenizerError):
    """The vocabulary splits text in a way that is not implemented.

    Raised instead of falling back to a similar pattern: a wrong split gives plausible but wrong ids.
    """
