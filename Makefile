# Two commands: `make serve` and `make test`. Both set up what they need.

PYTHON ?= python3
PORT ?= $(or $(BASIN_PORT),8000)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help dist serve test test-slow check audit setup train bench docs clean

help:
	@echo 'make serve      set everything up and serve the shipped checkpoints on port $(PORT) (PORT=...)'
	@echo 'make test       set everything up and run the tests'
	@echo 'make test-slow  the tests that take most of a minute each'
	@echo 'make check      formatting, lint, imports, types'
	@echo 'make audit      known weaknesses of what is installed'
	@echo 'make setup      the environment for development, in .venv'
	@echo 'make train      train the shipped checkpoints anew, from the datasets'
	@echo 'make bench      the benchmarks'
	@echo 'make dist       the wheels of server and client, in dist/'
	@echo 'make docs       the documentation as a site'
	@echo 'make clean      remove .venv'

serve: $(VENV)/.serve
	BASIN_PORT=$(PORT) exec $(BIN)/python -m service

# Two at a time, each on a thread of its own; files stay together, with the servers they start. The
# order is that of tests/conftest.py: the longest files first.
test: $(VENV)/.serve
	$(MAKE) --no-print-directory --jobs=2 $(VENV)/.dev $(VENV)/.kernels
	$(BIN)/lint-imports
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.dev
	$(BIN)/pytest -m slow

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

# Known weaknesses of what is installed; asks PyPI's database of advisories.
audit: $(VENV)/.dev
	$(BIN)/pip install --quiet pip-audit
	$(BIN)/pip-audit --local --skip-editable

setup: $(VENV)/.dev

# Retrain the checkpoints that ship; needs the datasets (see training/datasets).
train: $(VENV)/.dev
	$(BIN)/python -m training ship

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

dist: $(VENV)/.serve
	rm -rf dist build client/build
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist . ./client
	rm -rf build client/build

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

TORCH ?= torch==2.13.0

ALL := .[train,dev]

# uv takes a tenth of pip's time. It does not read pip's settings: where it finds no index, pip does.
define install
	UV_HTTP_TIMEOUT=15 $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python \
	  --editable ./client --editable "$(1)" || \
	  $(BIN)/pip install --quiet --editable ./client --editable "$(1)"
endef

SETUP := pyproject.toml setup.py client/pyproject.toml client/VERSION

$(VENV)/.serve: $(SETUP) | $(BIN)/python
	$(BIN)/pip install --quiet "$(TORCH)" uv
	$(call install,.[cli])
	touch $@

# Before the tests: every server that they start would compile the kernels at the same time. It
# needs only what serves, so it runs beside the installation of the rest.
$(VENV)/.kernels: $(VENV)/.serve $(shell find models -name '*.py')
	$(BIN)/python -m tests.support.compile_kernels
	touch $@

$(VENV)/.dev: $(SETUP) $(VENV)/.serve
	$(call install,$(ALL))
	touch $@
