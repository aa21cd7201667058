# `make test` on a fresh clone sets up .venv and runs every check. Once the packages are installed,
# nothing here needs a network.

PYTHON ?= python3
VENV ?= .venv
REQUIREMENTS ?= requirements.txt
PYTEST_ARGS ?=
# Processes that run tests. Each begins with a part of the files in their order, and takes over tests
# of another that has more left, so that both end at the same time.
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup test lint format demo app clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'Variables: PYTHON=python3.11   VENV=.venv   PYTEST_ARGS="-k trace"   WORKERS=2'
	@echo '           REQUIREMENTS=requirements-gpu.txt (with a VENV of its own: faiss on CUDA)'

setup: $(VENV)/.package ## Make the virtual environment with pinned packages and the editable package

test: lint ## Set up, lint, check types and import layers, run the tests
	$(PYTEST) --durations=20 $(PYTEST_ARGS)

lint: setup ## Check style, format, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Format the code and apply safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: setup ## Ask a small model about texts that it never saw, without and with kNN
	$(BIN)/python datastores/demo/demo.py

app: setup ## Open the page with the demo: http://127.0.0.1:7860
	$(BIN)/python app/app.py

clean: ## Remove caches and build output, keep the virtual environment
	rm -rf build dist *.egg-info .coverage .demo .grimp_cache .hypothesis .import_linter_cache \
	    .mypy_cache .pytest_cache .ruff_cache
	find . -path './$(VENV)' -prune -o -type d -name __pycache__ -exec rm -rf {} +

# Two stamps: a change of pyproject.toml repeats the editable install only, and that downloads nothing.
$(VENV)/.requirements: requirements.txt requirements-dev.txt $(REQUIREMENTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo 'Python 3.10 or newer is needed; name one: make setup PYTHON=python3.11' >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -r $(REQUIREMENTS) -r requirements-dev.txt
	@touch $@

$(VENV)/.package: pyproject.toml $(VENV)/.requirements
	$(BIN)/python -m pip install --no-build-isolation --no-deps --editable .
	@touch $@
