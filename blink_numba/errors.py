"""Errors that a user of the public API or the command line meets."""

from __future__ import annotations


class ParameterError(ValueError):
    """A parameter of a request makes no sense here.

    Attributes
    ----------
    param : str
        Its name, as the caller wrote it.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class GenerationError(RuntimeError):
    """A request that was accepted could not be finished; the message says why."""


class EngineStartError(RuntimeError):
    """The engine did not come up; the message is its own last line."""
