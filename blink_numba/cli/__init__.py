"""The command line: ``blink-numba COMMAND``."""

from blink_numba.cli.main import app, main

__all__ = ["app", "main"]
