"""What can be wrong with a model."""

from __future__ import annotations


class ModelError(ValueError):
    """A model is unknown, unreadable, incomplete or of an architecture that is not computed here."""
