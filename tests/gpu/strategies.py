"""The scenario of `tests.decisions` on the GPU by every launch strategy; JSON to standard output."""

from __future__ import annotations

import json
import sys

from blink_numba.runtime.local import make_backend
from tests.decisions import run_scenario, scenario_config


def main() -> None:
    """Run the strategies named by the arguments."""
    found = {}
    for launch in sys.argv[1:]:
        config = scenario_config("cuda", launch)
        backend = make_backend(config, lambda line: print(line, file=sys.stderr, flush=True))
        found[launch] = run_scenario(backend, config)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
