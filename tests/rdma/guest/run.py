"""Runs scenarios and writes a line of JSON for each: ``run.py MODULE RESULTS [START]``.

With START it imports the scenarios at once, and runs them when that file is there.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import time
import traceback

SCENARIO_DEADLINE_S = 300.0


def main() -> int:
    module = importlib.import_module(sys.argv[1])
    while len(sys.argv) > 3 and not os.path.exists(sys.argv[3]):
        time.sleep(0.2)
    failed = 0
    with open(sys.argv[2], "a", buffering=1) as results:
        for scenario in module.SCENARIOS:
            faulthandler.dump_traceback_later(SCENARIO_DEADLINE_S, exit=True)
            began, error = time.monotonic(), ""
            try:
                scenario()
            except BaseException:
                error = traceback.format_exc()
                failed += 1
            took = round(time.monotonic() - began, 2)
            results.write(json.dumps({"scenario": scenario.__name__, "error": error, "seconds": took}) + "\n")
            print(f"{'FAILED' if error else 'passed'} {scenario.__name__} {took} s {error}", flush=True)
            faulthandler.cancel_dump_traceback_later()
    return failed


if __name__ == "__main__":
    sys.exit(main())
