# Every target works from a fresh clone: the virtual environment is made first.
PYTHON ?= $(firstword $(foreach p,python3.12 python3.11 python3.13 python3,$(shell \
	$(p) -c 'import sys; print("$(p)" if (3, 11) <= sys.version_info < (3, 14) else "")' 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/blink-numba
MODEL ?= smollm2

.PHONY: help demo demo-gpu serve test lint verify fuzz-tokenizer gpu-test notebooks clean

help:
	@echo "make demo            fetch a model, serve it, stream one answer, stop"
	@echo "make serve           serve MODEL=$(MODEL) on 127.0.0.1:8000"
	@echo "make test            tests, ruff, pyright, import contract"
	@echo "make verify          check the slot protocol exhaustively"
	@echo "make fuzz-tokenizer  long differential fuzzing of the tokenizer"
	@echo "make notebooks       execute the notebooks"
	@echo "make gpu-test        tests that need a GPU;  make demo-gpu: the demo on it"

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,notebook]'
	@touch $@ $(VENV)/.run

$(VENV)/.cuda: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,notebook,cuda]'
	@touch $@

demo: $(VENV)/.run
	$(BIN)/python -m blink_numba.demo --model $(MODEL)

demo-gpu: $(VENV)/.cuda
	$(BIN)/python -m blink_numba.demo --model $(MODEL) --backend cuda

serve: $(VENV)/.run
	$(RUN) serve $(MODEL)

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not gpu"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

verify: $(VENV)/.dev
	$(RUN) verify

fuzz-tokenizer: $(VENV)/.dev
	$(BIN)/python -m tests.tokenizer.fuzz

notebooks: $(VENV)/.dev
	$(BIN)/python -m pytest tests/notebooks

gpu-test: $(VENV)/.cuda
	$(BIN)/python -m pytest -m gpu tests

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .ruff_cache
