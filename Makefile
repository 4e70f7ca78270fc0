# make demo | quick | test | check | wheel | nvflare | bench | mutants | docs | documents | clean -- every target makes its own environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes: what each loads is compiled once

.PHONY: demo quick test check lint types imports tests wheel nvflare bench mutants docs documents clean

demo: $(VENV)/.core
	$(BIN)/fedveil demo --out out/demo

quick: $(VENV)/.full  # the daily loop: no test that tests/slow.txt names
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q -m "not slow" -n 2

test: $(VENV)/.full
	$(BIN)/python -m pytest -n auto

check: $(VENV)/.full lint  # what mypy and the import rules take, the tests do not wait for
	$(MAKE) --no-print-directory --jobs=3 types imports tests

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

tests: $(VENV)/.full
	$(BIN)/python -m pytest -n auto

# Builds sdist and wheel, and proves the wheel in two empty environments: with the newest versions and with the lowest.
wheel:
	$(PYTHON) tools/prove_wheel.py

# The trial on NVFlare, which check leaves out: it brings twenty packages (Flask, docker, ...) that nothing else needs.
nvflare: $(VENV)/.full
	$(PIP) --editable '.[nvflare]'
	$(BIN)/python -m pytest -n 0 tests/end_to_end/test_nvflare.py

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# Plants some 200 small errors, one at a time and in a copy: each must be caught by a test. An hour or so; not in CI.
mutants: $(VENV)/.dev
	$(BIN)/python tools/mutants.py

# The site, into site/ (read it with: python -m http.server -d site). With --quiet, strict would not count warnings.
docs: $(VENV)/.docs
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs src examples benchmarks tools
	$(BIN)/python tools/studio_pictures.py docs/studio
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

documents: $(VENV)/.dev
	$(BIN)/python -m pytest tests/end_to_end/test_documents.py
	$(BIN)/fedveil figures --out docs/figures

$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]'
	touch $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) --editable '.[docs,studio]'
	touch $@

$(VENV)/.full: $(VENV)/.dev
	$(PIP) --editable '.[dev,torch,he,flower,onnx,sql,studio,mlflow,docs]'
	touch $@

clean:
	rm -rf $(VENV) .cache out bench-out site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
