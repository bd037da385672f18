"""The scenario of `tests.decisions` on the GPU by one launch strategy, `RUNS` times; JSON to standard output.

It prepares, says so in a line, and runs once it is told to by a line: strategies are compiled side
by side and run one after the other.
"""

from __future__ import annotations

import json
import os
import sys

from blink_numba.runtime.local import make_backend
from tests.decisions import run_scenario, scenario_config

RUNS = int(os.environ.get("RUNS", "3"))


def main() -> None:
    """Run the strategy named by the argument."""
    config = scenario_config("cuda", sys.argv[1])
    backend = make_backend(config, lambda line: print(line, file=sys.stderr, flush=True))
    print("prepared", flush=True)
    if not sys.stdin.readline():
        return
    runs = [run_scenario(backend, config)]
    while len(runs) < RUNS:  # the kernels are compiled already
        runs.append(run_scenario(make_backend(config, lambda line: None), config))
    json.dump(runs, sys.stdout)


if __name__ == "__main__":
    main()
