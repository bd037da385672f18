#!/bin/sh
# Measure on a GPU machine: each bench as a table, its JSON and picture into OUT. A bench that
# cannot be made does not keep the others from being made; the exit status then is 1.
# Usage: OUT=folder PYTHON=python3 scripts/gpu_bench.sh [bench …]
set -u
PYTHON=${PYTHON:-python3}
OUT=${OUT:-gpu-out}
mkdir -p "$OUT"
failed=""

measure() { # file, seconds at most, bench, options …
    file=$1 limit=$2
    shift 2
    began=$(date +%s)
    echo "== $* (at most $limit s)"
    if timeout -k 10 "$limit" "$PYTHON" -m blink_numba bench "$@" --json "$OUT/$file.json"; then
        "$PYTHON" -m blink_numba.bench.plots "$OUT/$file.json" || true
    else
        failed="$failed $file"
    fi
    echo "== $file took $(($(date +%s) - began)) s"
}

for bench in ${*:-launch scan endurance decode interference energy agreement serve}; do
    case $bench in
    launch | scan) measure "$bench" 100 "$bench" ;;
    endurance) measure endurance 200 endurance ;;
    decode) measure decode-cuda 240 decode --backend cuda ;;
    interference) measure interference 300 interference ;;
    interference-8b)
        measure interference-llama3-8b 240 interference --model llama3-8b --strategies faf,host --prompt 512
        ;;
    energy) measure energy 150 energy ;;
    agreement) measure agreement 300 agreement --backend cuda --model smollm2 ;;
    serve)
        measure serve-smollm2 300 serve --model smollm2 --backend cuda --dummy --rates 8,16,32 --seconds 8 \
            --burners 32 --max-prompt 2048 --max-answer 1024
        measure serve-llama3-8b 300 serve --model llama3-8b --backend cuda --dummy --rates 2,4,8 --seconds 10 \
            --burners 32 --max-prompt 2048 --max-answer 1024
        ;;
    *)
        echo "no such bench: $bench" >&2
        exit 2
        ;;
    esac
done
[ -z "$failed" ] || { echo "could not be made:$failed" >&2; exit 1; }
