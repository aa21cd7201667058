# `make test` on a fresh clone sets up .venv and runs every check. Once the packages are installed,
# nothing here needs a network.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
FUZZ_ARGS ?=
# Processes that run tests. Each begins with a part of the files in their order, and takes over tests
# of another that has more left, so that all end at the same time. On two cores three are faster than
# two, since the tests of the page wait for the browser half of their time.
WORKERS ?= 3
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Python compiles what it imports, a small part of what is installed: pip takes a minute for all.
PIP_INSTALL = $(BIN)/python -m pip install --no-compile

BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start many processes. Without compiled files each would compile this package again, and
# each worker of pytest all tests.
unexport PYTHONDONTWRITEBYTECODE

# What `make check` runs: files of each part of the package whose tests take milliseconds each.
QUICK := building/test_given_documents.py corpus/test_corpus_hub.py corpus/test_corpus_reading.py \
    corpus/test_documents.py corpus/test_encoding.py corpus/test_one_file.py \
    corpus/test_packed.py corpus/test_places.py docs/test_blocks.py docs/test_links.py \
    docs/test_site.py engine/test_compatibility.py engine/test_location.py \
    engine/test_tokens.py engine/test_windows.py evidence/test_sources.py \
    generation/test_generate_constraints.py hub/test_card.py \
    index/test_choice.py index/test_demand.py index/test_exact.py lab/test_clusters.py \
    lab/test_legacy.py measure/test_likelihood.py measure/test_texts.py \
    mixture/gates/test_gate.py mixture/test_distribution_edges.py \
    mixture/test_presets.py settings/test_config.py settings/test_given_numbers.py \
    store/test_files.py store/test_job.py store/test_manifest.py store/test_reading.py \
    store/test_writer.py test_no_unsafe_calls.py test_printable.py test_swaps.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup check test test-all tests test-vllm fuzz wheel release bench pins lint style types quick format docs demo app space clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'Variables: PYTHON=python3.11   VENV=.venv   PYTEST_ARGS="-k trace"   WORKERS=3'

setup: $(VENV)/.package $(VENV)/.tools ## Make the virtual environment: pinned packages, the editable package, developers' tools

check: ## Before a commit: lint, and the quick tests beside it; under a minute
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint quick

# Types take a core for half a minute, which the tests need not wait for.
test: style ## Set up, lint, check types and import layers, run the tests
	@$(MAKE) --no-print-directory --jobs 2 types tests

tests: setup $(VENV)/.instruct
	$(PYTEST) --durations=20 $(PYTEST_ARGS)

test-all: style types setup $(VENV)/.instruct ## As `make test`, with the long runs: faults, attacks, fuzzing, threads, every model type
	$(PYTEST) -m 'soak or not soak' --durations=20 $(PYTEST_ARGS)

test-vllm: ## Test the plugin for vLLM, in a virtual environment of its own: PYTHON=python3.11
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --no-compile -r requirements-vllm.txt
	.venv-vllm/bin/pip uninstall -y torchvision torchaudio torchcodec # builds for CUDA
	.venv-vllm/bin/pip install --no-deps --editable .
	.venv-vllm/bin/python datastores/sqlite/smollm2.py
	.venv-vllm/bin/python -m pytest -m vllm -v tests/integrations

fuzz: setup ## Give every reader of files changed inputs: FUZZ=1000 for each
	FUZZ=$(or $(FUZZ),1000) $(BIN)/python -m pytest tests/fuzz

wheel: ## Build the package, and try the wheel with the lowest and the newest requirements
	PYTHON=$(PYTHON) .ci/wheel

release: ## Prepare a release: VERSION=0.1.0 tries the package, makes the Space, cuts the changelog and tags
	.ci/release $(VERSION)

bench: setup ## All ratios that matter in a few minutes: one table, and JSON in benchmarks/results
	$(BIN)/python benchmarks/short.py

quick: setup
	$(BIN)/python -m pytest -q $(addprefix tests/,$(QUICK)) $(PYTEST_ARGS)

lint: style types ## Check style, format, types and import layers

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

format: setup ## Format the code and apply safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs ## Build the documentation's site into site/, and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo 'site/index.html; with search: $(BIN)/python -m http.server --directory site'

demo: $(VENV)/.package ## Continue sentences and answer questions with the documentation of SQLite
	$(BIN)/python datastores/sqlite/demo.py

app: $(VENV)/.package ## Open the page with SQLite's documentation: http://127.0.0.1:7860
	$(BIN)/python app/app.py

# uv resolves for a Python that is not here. pip would read the markers for the one that it runs in.
# glibc 2.31 is that of Debian 11 and Ubuntu 20.04.
pins: $(BIN)/python ## Try that all pins install on the oldest and the newest Python; needs a network
	$(PIP_INSTALL) --quiet uv==0.13.9
	for version in 3.10 3.13; do \
	    $(BIN)/uv pip compile --quiet --only-binary :all: --python-platform x86_64-manylinux_2_31 \
	        --python-version $$version requirements.txt \
	        $(patsubst %,requirements-%.txt,dev docs ray) >/dev/null || exit 1; \
	done

space: ## Write the files of a Hub Space into build/space
	rm -rf build/space
	$(PYTHON) space/make.py build/space

clean: ## Remove caches and build output, keep the virtual environment
	rm -rf build dist site *.egg-info .coverage .grimp_cache .hypothesis .import_linter_cache \
	    .mypy_cache .pytest_cache .ruff_cache
	find . -path './$(VENV)' -prune -o -type d -name __pycache__ -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo 'Python 3.10 or newer is needed; name one: make setup PYTHON=python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# `make demo` needs the first two stamps only. A change of pyproject.toml repeats the editable install
# only, and that downloads nothing: setuptools, which PyTorch brings, builds it.
$(VENV)/.requirements: requirements.txt | $(BIN)/python
	$(PIP_INSTALL) -r requirements.txt
	@touch $@

$(VENV)/.package: pyproject.toml $(VENV)/.requirements
	$(PIP_INSTALL) --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.tools: requirements-dev.txt $(VENV)/.requirements | $(VENV)/.package
	$(PIP_INSTALL) -r requirements-dev.txt
	@touch $@

# The model of the tests marked `instruct`. Without a network they are skipped.
$(VENV)/.instruct: datastores/sqlite/smollm2.py $(VENV)/.tools
	$(BIN)/python datastores/sqlite/smollm2.py && touch $@ || test "$$KNN_LOGITS_INSTRUCT" != required

# The site's packages are fetched by the first `make docs`, so that `make setup` stays quick.
$(VENV)/.docs: requirements-docs.txt $(VENV)/.package $(VENV)/.tools
	$(PIP_INSTALL) -r requirements-docs.txt
	@touch $@
