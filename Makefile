# Every target works from a fresh clone: the virtual environment is made first.
PYTHON ?= $(firstword $(foreach p,python3.12 python3.11 python3.13 python3,$(shell \
	$(p) -c 'import sys; print("$(p)" if (3, 11) <= sys.version_info < (3, 14) else "")' 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/blink-numba
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
MODEL ?= smollm2
# The GPU targets take an interpreter that is given as it is, without network or environment of
# its own; likewise a folder with a GGUF file: make gpu-test PYTHON=python3 MODEL_DIR=models
GPU_PYTHON := $(if $(filter file,$(origin PYTHON)),$(BIN)/python,$(PYTHON))
GPU_READY := $(if $(filter file,$(origin PYTHON)),$(VENV)/.cuda)

.PHONY: help demo demo-gpu serve test lint verify fuzz-tokenizer gpu-test gpu-bench notebooks clean

help:
	@echo "make demo            fetch a model, serve it, stream one answer, stop"
	@echo "make serve           serve MODEL=$(MODEL) on 127.0.0.1:8000"
	@echo "make test            tests, ruff, pyright, import contract"
	@echo "make verify          check the slot protocol exhaustively"
	@echo "make fuzz-tokenizer  long differential fuzzing of the tokenizer"
	@echo "make notebooks       execute the notebooks"
	@echo "make gpu-test        tests that need a GPU;  make demo-gpu: the demo on it"
	@echo "make gpu-bench       all measurements on a GPU, into OUT=gpu-out"
	@echo "without network, on a GPU: PYTHON=python3 (one that has the packages), MODEL_DIR=folder with a GGUF file"

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# with the CUDA packages where there is a GPU; where they cannot be had, the CPU serves
$(VENV)/.run: $(VENV)/.made pyproject.toml
	$(if $(wildcard /dev/nvidiactl),$(PIP) -e '.[cuda]' ||) $(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml
	$(PIP) -e '.[dev,notebook]'
	@touch $@ $(VENV)/.run

$(VENV)/.cuda: $(VENV)/.dev
	$(PIP) -e '.[dev,notebook,cuda]'
	@touch $@

demo: $(VENV)/.run
	$(BIN)/python -m blink_numba.demo --model $(MODEL)

demo-gpu: $(GPU_READY)
	$(GPU_PYTHON) -m blink_numba.demo_gpu $(if $(MODEL_DIR),--model-dir $(MODEL_DIR),--model $(MODEL))

serve: $(VENV)/.run
	$(RUN) serve $(MODEL)

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not gpu and not alone"
	$(BIN)/python -m pytest -m alone
	$(BIN)/python -m pytest -n 2 --nbmake --nbmake-timeout=120 notebooks

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

verify: $(VENV)/.dev
	$(RUN) verify --long --mutants

fuzz-tokenizer: $(VENV)/.dev
	$(BIN)/python -m tests.tokenizer.fuzz

notebooks: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --nbmake --nbmake-timeout=120 notebooks

gpu-test: $(GPU_READY)
	$(if $(MODEL_DIR),MODEL_DIR=$(MODEL_DIR)) $(GPU_PYTHON) -m pytest -m gpu tests/gpu tests/engines

gpu-bench: $(GPU_READY)
	PYTHON=$(GPU_PYTHON) scripts/gpu_bench.sh

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .ruff_cache
