# `make demo`, then `make ui`; contributors, `make test`. Each installs what it needs.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# uv from the PATH, else one of our own from PyPI.
UV := $(or $(shell command -v uv 2>/dev/null),$(CURDIR)/.tools/bin/uv)
# Pythons that pyenv keeps off the PATH.
export PATH := $(PATH):$(subst $() ,:,$(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.1[1-9]*/bin))
# Tests start many interpreters: without compiled files each takes seconds more.
unexport PYTHONDONTWRITEBYTECODE
# Where the demo and the UI keep their outputs and Dagster's own records.
DEMO := $(CURDIR)/.demo
demo_env := MARIN_PREFIX=$(DEMO)/store DAGSTER_HOME=$(DEMO)/dagster DO_NOT_TRACK=1
run := $(UV) run --frozen
# The environment of `make unit`: the newest Python, beside the oldest of .venv.
newest := UV_PROJECT_ENVIRONMENT=.venv-3.13 $(run) --python 3.13
# Some tests wait for something, so more workers than cores pay; a file's tests share its servers.
WORKERS ?= 3
parallel = -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)
# In memory where there is enough: SQLite waits for the disk at each of Dagster's events.
memory := $(shell test -w /dev/shm && df --output=avail /dev/shm | awk 'NR == 2 && $$1 > 4000000 {print "/dev/shm"}')
quick unit servers lowest interop coverage: export TMPDIR := $(or $(memory),$(TMPDIR),/tmp)
SERVERS := tests/e2e/server tests/e2e/deployment tests/e2e/browser
# Where the tests in a browser leave pictures of the pages.
export MARIN_DAGSTER_PICTURES ?= $(CURDIR)/.pictures

help: ## What there is to do
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

demo: env instance ## Build the example pipeline end to end, and show what ran
	@$(demo_env) $(run) python scripts/demo.py

ui: env instance ## Open the example in the Dagster UI, http://127.0.0.1:3000
	$(demo_env) $(run) dagster dev -w workspace.yaml

fast: env ## Lint, types, and the lower layers' quick tests: what to run after each edit
	@$(MAKE) --no-print-directory --jobs=2 --output-sync --old-file=env check quick

# Two at a time, the longest suite first: one computes while the other waits or installs.
test: env debian ## Everything that CI runs
	@$(MAKE) --no-print-directory --jobs=2 --old-file=env --old-file=debian \
		check unit lowest servers interop

check: env ## Lint, layers, formatting and types
	$(run) ruff check .
	$(run) ruff format --check .
	$(run) lint-imports
	$(run) mypy

# One process: the other core checks the types, and workers would each load the tests again.
quick: env
	$(run) pytest -q -m "not slow and not server" tests/steps tests/cache tests/lazy $(PYTEST_ARGS)

unit: $(UV) debian ## Tests on the newest Python and Dagster
	$(newest) pytest $(SERVERS:%=--ignore=%) $(parallel)

servers: env debian ## Tests of whole deployments, and of the UI in a browser
	$(run) pytest $(SERVERS) $(parallel)

lowest: $(UV) debian ## Tests of the Dagster integration on the lowest supported Dagster
	UV=$(UV) scripts/test-lowest $(parallel)

interop: $(UV) debian ## Tests against real marin-core, in a Python 3.12 environment
	UV=$(UV) scripts/test-interop $(parallel)

coverage: env debian ## How much of the package the unit tests run
	$(run) pytest $(SERVERS:%=--ignore=%) $(parallel) --cov --cov-report=term:skip-covered

pictures: env debian ## Take the README's pictures anew
	MARIN_DAGSTER_PICTURES=docs/pictures $(run) pytest tests/e2e/browser -k pictures_of_the_readme

env: $(UV) ## The development environment
	@$(UV) sync --quiet --frozen

debian:
	@scripts/install-debian

instance:
	@mkdir -p $(DEMO)/dagster
	@cp scripts/demo-instance.yaml $(DEMO)/dagster/dagster.yaml

$(CURDIR)/.tools/bin/uv:
	python3 -m venv .tools
	.tools/bin/pip install --quiet --disable-pip-version-check uv

clean: ## Remove environments, caches and the demo's outputs
	rm -rf .venv .venv-* .tools .demo .pictures .mypy_cache .pytest_cache .ruff_cache .hypothesis

.PHONY: help demo ui fast test check quick unit servers lowest interop coverage pictures env debian instance clean
