"""``python -m blink_numba``: the command line, where no script of it is installed."""

from blink_numba.cli import main

main()
