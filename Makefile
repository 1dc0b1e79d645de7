# The project's tasks. `make` lists them. Each does its own set-up: Python >= 3.11, make and git are enough.
#
#   make test PYTHON=/path/to/python3.13     another interpreter; every version has an environment of its own
#   make test ARGS="-k hal"                  further arguments for the tool behind the task

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# The first Python on the path that is new enough.
ifndef PYTHON
PYTHON := $(shell for name in python3 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$name"; break; }; done)
endif
VERSION := $(if $(PYTHON),$(shell "$(PYTHON)" -c \
	'import sys; v = sys.version_info; print(f"{v[0]}.{v[1]}") if v >= (3, 11) else None' 2>/dev/null))

VENV := .venv/$(VERSION)
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PINS := requirements/build.txt requirements/dev.txt
COMPILE := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header
COMPOSE ?= docker compose

# A compiled kernel is cached by its own file alone; a folder for each state of all of them cannot go stale.
export NUMBA_CACHE_DIR ?= $(CURDIR)/.cache/numba/$(firstword $(shell \
	cat $(sort $(wildcard src/gramian/kernels/*.py)) /dev/null | cksum))

# Tests run on machines with other work to do, and their results must not depend on BLAS threads.
test test-all notebooks: export OPENBLAS_NUM_THREADS = 1
test test-all notebooks: export OMP_NUM_THREADS = 1
test test-all notebooks: export MKL_NUM_THREADS = 1
test test-all notebooks: export VECLIB_MAXIMUM_THREADS = 1
test test-all notebooks: export MPLBACKEND = agg

.PHONY: help
help:  ## List the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(READY)  ## Make or update the environment in .venv (every other task does this by itself)

# Done once, and again when the pins or the project's own metadata change.
$(READY): $(PINS) pyproject.toml
	@test -n "$(VERSION)" || { echo "No Python of at least 3.11 at '$(PYTHON)';" \
		"install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Setting up $(VENV) from the pinned requirements"
	@test -x $(BIN)/python -a -x $(BIN)/pip || "$(PYTHON)" -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--require-hashes --requirement requirements/build.txt
	@$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes $(PINS)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-build-isolation --no-deps --editable .
	@touch $@

.PHONY: demo
demo: $(READY)  ## Run the main job on real data, with a report at the end (runs/demo)
	$(BIN)/gramian demo $(ARGS)
	@command -v gramian >/dev/null || echo "before that: source $(BIN)/activate"

.PHONY: test
test: $(READY)  ## Run the tests
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile $(ARGS)

.PHONY: test-all
test-all: $(READY)  ## Run the tests, the slow ones too, with freshly drawn examples
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -m "" --numprocesses=2 --dist=loadfile --timeout=1800 $(ARGS)

.PHONY: lint
lint: $(READY)  ## Check style, format and the order of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

.PHONY: types
types: $(READY)  ## Check the types
	$(BIN)/mypy

.PHONY: notebooks
notebooks: $(READY)  ## Execute the notebooks
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=600 --timeout=900 $(ARGS) notebooks

.PHONY: bench
bench: $(READY)  ## Measure against the peers, in short form (one table in benchmarks/results)
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-memory
bench-memory: $(READY)  ## Show that a job larger than its memory limit stays within it
	$(BIN)/python -m benchmarks.memory $(ARGS)

.PHONY: compose-config
compose-config:  ## Check the compose files (COMPOSE=docker-compose where it is a command of its own)
	$(COMPOSE) --file docker-compose.yml config --quiet

.PHONY: pins
pins: $(READY)  ## Resolve the pinned requirements anew, in their newest versions
	$(COMPILE) pyproject.toml --extra parquet --extra tls --group test --group lint --group notebooks \
		--output-file requirements/dev.txt
	$(COMPILE) pyproject.toml --extra parquet --extra tls --constraints requirements/dev.txt \
		--output-file requirements/run.txt
	$(COMPILE) --group build --constraints requirements/dev.txt --output-file requirements/build.txt

.PHONY: clean
clean:  ## Remove the environments, the caches and the build products (runs stay)
	rm -rf .venv .cache build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
