# `make demo`, then `make ui`; contributors, `make test`. Each installs what it needs.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# uv from the PATH, else one of our own from PyPI.
UV := $(or $(shell command -v uv 2>/dev/null),$(CURDIR)/.tools/bin/uv)
# Pythons that pyenv keeps off the PATH.
export PATH := $(PATH):$(subst $() ,:,$(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.1[1-9]*/bin))
# Where the demo and the UI keep their outputs and Dagster's own records.
DEMO := $(CURDIR)/.demo
demo_env := MARIN_PREFIX=$(DEMO)/store DAGSTER_HOME=$(DEMO)/dagster DO_NOT_TRACK=1
run := $(UV) run --frozen
SERVERS := tests/e2e/server tests/e2e/deployment tests/e2e/browser
# Where the tests in a browser leave pictures of the pages.
export MARIN_DAGSTER_PICTURES ?= $(CURDIR)/.pictures

help: ## What there is to do
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

demo: env instance ## Build the example pipeline end to end, and show what ran
	@$(demo_env) $(run) python scripts/demo.py

ui: env instance ## Open the example in the Dagster UI, http://127.0.0.1:3000
	$(demo_env) $(run) dagster dev -w workspace.yaml

# Two suites at a time, since most tests wait for something, and the longest first: what they need is
# there by then.
test: check debian ## Everything that CI runs
	@$(MAKE) --no-print-directory --jobs=2 --old-file=env --old-file=debian \
		unit interop lowest servers

check: env ## Lint, formatting and types
	$(run) ruff check .
	$(run) ruff format --check .
	$(run) mypy

unit: env debian ## Tests on the newest Dagster
	$(run) pytest $(SERVERS:%=--ignore=%) $(PYTEST_ARGS)

servers: env debian ## Tests of whole deployments, and of the UI in a browser
	$(run) pytest $(SERVERS) $(PYTEST_ARGS)

lowest: $(UV) debian ## Tests of the Dagster face on the lowest Dagster that is supported
	UV=$(UV) scripts/test-lowest $(PYTEST_ARGS)

interop: $(UV) debian ## Tests against real marin-core, in a Python 3.12 environment of their own
	UV=$(UV) scripts/test-interop $(PYTEST_ARGS)

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

.PHONY: help demo ui test check unit servers lowest interop pictures env debian instance clean
