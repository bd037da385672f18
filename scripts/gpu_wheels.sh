#!/bin/sh
# Collect what a GPU machine without network needs beside its own PyTorch-style Python:
# wheels for Python 3.12 on x86-64 in the folder WHEELS, to be installed by gpu_session.sh.
set -eu
WHEELS=${WHEELS:-.whl}
PYTHON=${PYTHON:-python3}
mkdir -p "$WHEELS"
"$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: \
    --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_24_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform manylinux1_x86_64 \
    -d "$WHEELS" "$@" \
    'numpy==2.4.*' 'nvmath-python==1.0.*' 'gguf==0.19.*' 'greenlet>=3.1'
ls -l "$WHEELS"
