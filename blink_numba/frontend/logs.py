"""Log lines of the server's processes."""

from __future__ import annotations

import logging


def setup_logging(level: str) -> None:
    """Log to standard error; the access log is not silenced by a higher `level`."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("blink_numba.access").setLevel(logging.INFO)
    for chatty in ("httpx", "httpcore", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
