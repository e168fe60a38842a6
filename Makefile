# `make` lists the targets; each does its own set-up.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test check parity bench bench-peers docs pins anew

VENV_PYTHON := .venv/bin/python
PROMPT ?= What is the capital of France?
unexport PROMPT PYTHONHOME PYTHONPATH

# The prompt as it was typed: make would expand a $ in it.
run: export HEADWAY_PROMPT := $(value PROMPT)
# Tests run in two processes, each with one thread, and reach for nothing outside.
test parity: export OMP_NUM_THREADS := 1
test parity: export HF_HUB_OFFLINE := 1

help:
	@echo 'headway: every Transformer, one glass box'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1#\2/p' Makefile | awk -F'#' '{ printf "%-19s %s\n", $$1, $$2 }'

run: .venv/base  ## answer a question with SmolLM2 (PROMPT="..."), then chat if this is a terminal
	@exec $(VENV_PYTHON) -m headway chat smollm2 "--prompt=$$HEADWAY_PROMPT"

test: .venv/dev  ## the tests, in under five minutes on two cores
	@$(VENV_PYTHON) -m pytest -q -n 2

check: .venv/dev  ## lint, format, types, and who may import whom
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) -m mypy
	@.venv/bin/lint-imports

parity: .venv/dev  ## the slow comparisons with other implementations
	@$(VENV_PYTHON) -m pytest -q -n 2 -m parity

bench: .venv/dev  ## every measurement of benchmarks/ that needs nothing but .venv
	@for file in $(filter-out benchmarks/peers.py,$(wildcard benchmarks/[!_]*.py)); do \
		echo "== $$file"; $(VENV_PYTHON) "$$file" || exit 1; \
	done

bench-peers: .venv-peers/installed  ## speed beside other engines, which are installed into .venv-peers
	@$(VENV_PYTHON) benchmarks/peers.py --json .venv-peers/measured.json

docs: .venv/dev  ## write docs/map.md anew
	@$(VENV_PYTHON) -m tools.map

pins: .venv/dev  ## write constraints.txt anew, from what .venv holds
	@$(VENV_PYTHON) -m tools.pins

# Stamps, written only after an install that worked.
.venv/base: pyproject.toml constraints.txt
	@sh tools/setup.sh
	@touch $@

.venv/dev: pyproject.toml constraints.txt
	@sh tools/setup.sh dev
	@touch .venv/base $@

.venv-peers/installed: benchmarks/peers.txt tools/peers.sh | .venv/dev
	@sh tools/peers.sh
	@touch $@

# A .venv whose interpreter has gone is made anew.
ifneq ($(shell test -x .venv/bin/python && echo there),there)
.venv/base .venv/dev: anew
endif
