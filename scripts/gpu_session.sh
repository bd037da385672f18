#!/bin/sh
# Run a command on a GPU machine without network: install the wheels of WHEELS beside the given
# Python's own packages, then run the arguments (default: the GPU tests), reports going to OUT.
# Usage: WHEELS=folder OUT=folder PYTHON=python3 scripts/gpu_session.sh [command …]
set -eu
WHEELS=${WHEELS:-.whl}
PYTHON=${PYTHON:-python3}
OUT=${OUT:-gpu-out}
SITE=${SITE:-${TMPDIR:-/tmp}/blink-numba-site}
mkdir -p "$OUT"
if [ ! -e "$SITE/.installed" ]; then
    "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$SITE" "$WHEELS"/*.whl
    touch "$SITE/.installed"
fi
# blink-numba's sources come first: their package names are common ones
PYTHONPATH=$PWD:$SITE${PYTHONPATH:+:$PYTHONPATH}
CUDA_MODULE_LOADING=EAGER
PYTHONUNBUFFERED=1
export PYTHONPATH CUDA_MODULE_LOADING PYTHONUNBUFFERED OUT PYTHON
if [ $# -eq 0 ]; then
    set -- "$PYTHON" -m pytest -m gpu tests/gpu tests/engines/test_cuda_*.py --junitxml "$OUT/gpu-tests.xml"
fi
exec "$@"
