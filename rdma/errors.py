"""Why a submission is refused: one class a cause, raised before anything is written."""

from __future__ import annotations


class SubmitError(RuntimeError):
    """A request was not submitted; the message names the remedy."""


class RingFull(SubmitError):
    """No free slot in this front end's share."""


class ArenaFull(SubmitError):
    """No room for prompt and answer in this front end's share of the token arena."""


class PromptTooLong(SubmitError):
    """The prompt leaves no room for an answer within the model's length."""


class BadParameter(SubmitError):
    """A parameter makes no sense.

    Attributes
    ----------
    parameter : str
        Name of the field of `rdma.submit.Request`.
    """

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(f"{parameter}: {message}")
        self.parameter = parameter


class AttachError(RuntimeError):
    """A front end cannot take its place; the message names the remedy."""


class FrontEndHeld(AttachError):
    """Another process holds this front end's place."""
