# Each target builds what it needs: a machine with python3 (3.11 or later, with its venv module), make and git is enough.
# Where packages come from is pip's own configuration (for instance PIP_EXTRA_INDEX_URL for a CPU build of torch).

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
BASE := .venv/.made
DEV := .venv/.dev
EVERY := .venv/.every

.PHONY: demo test check bench install clean

demo: $(BASE)
	$(BIN)/foretell fit llama-3-8b --gpu h100 --gpus 8 --framework fsdp2 --seq-len 8192 --recompute full

test: check
	$(BIN)/python -m pytest -n 2

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(BASE)
	$(BIN)/python benchmarks/run.py

install: $(EVERY)

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "foretell needs Python 3.11 or later; $(PYTHON) is older. Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) lacks its venv module; install it (on Debian and Ubuntu: the package python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

$(BASE): pyproject.toml | .venv/bin/python
	$(PIP) --editable .
	@touch $@

$(DEV): pyproject.toml | $(BASE)
	$(PIP) --editable '.[dev,trace]'
	@touch $@

$(EVERY): pyproject.toml | $(BASE)
	$(PIP) --editable '.[all]'
	@touch $@
