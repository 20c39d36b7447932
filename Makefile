PYTHON ?= python3
BIN := .venv/bin
# One compilation cache for every process that the targets start: what one test compiled, the others load.
export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0.2
WORKERS ?= 2
# Tests compile for longer than they run: fusions by XLA's older emitters, which take half the time.
test extended fast: export XLA_FLAGS := $(XLA_FLAGS) --xla_cpu_use_fusion_emitters=false

.PHONY: train test extended fast lint format clean

## Train three learners on one economy and print one table.
train: .venv/.ready
	$(BIN)/python examples/swap_agents.py

## Everything that has to pass before a change lands; pytest's closing line comes last.
test: lint
	$(BIN)/pytest -n $(WORKERS) -m "not extended"

## Further calibrations, structures and environments of other libraries, on top of `make test`.
extended: .venv/.ready-dev
	$(BIN)/pytest -n $(WORKERS) -m extended

## The tests that take seconds.
fast: .venv/.ready-dev
	$(BIN)/pytest -n $(WORKERS) -m "not slow and not extended"

## Style and types.
lint: .venv/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/.ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .cache build dist *.egg-info .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv .venv

# A stamp is made after the installation has succeeded, so a broken one is tried again.
.venv/.ready: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . -c constraints.txt
	touch $@

.venv/.ready-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $@ .venv/.ready
