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
    'numpy==2.4.*' 'nvmath-python==1.0.*' 'gguf==0.19.*' 'greenlet>=3.1' \
    'pydantic==2.14.4' 'pydantic-core==2.50.5' 'annotated-types>=0.7' 'typing-inspection>=0.4' \
    'starlette>=0.41' 'uvicorn>=0.32' 'httptools>=0.6' \
    'openai==3.57.*' 'httpx2==2.16.*' 'httpcore2==2.16.*' 'truststore>=0.10' 'jiter>=0.10' 'sniffio>=1.3'
ls -l "$WHEELS"
