"""The front end's process: settings come on standard input, "ready" goes to standard output."""

from __future__ import annotations

import os
import sys

from blink_numba.frontend.settings import FrontEndSettings
from blink_numba.processes import die_with_parent


def main() -> int:
    die_with_parent()
    settings = FrontEndSettings.from_json(sys.stdin.readline())
    if settings.cpus:
        os.sched_setaffinity(0, settings.cpus)

    from blink_numba.frontend.app import run
    from blink_numba.frontend.logs import setup_logging
    from blink_numba.vocabularies import load_tokenizer

    setup_logging(settings.log_level)
    tokenizer = load_tokenizer(settings.model)
    return run(
        settings,
        tokenizer,
        frozenset(tokenizer.eos_ids),
        on_ready=lambda port: print(f"ready {port}", flush=True),
    )


if __name__ == "__main__":
    sys.exit(main())
