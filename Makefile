# Two commands need nothing before them: `make quickstart` runs the main job on a CPU, `make test` runs the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: quickstart test check bench resolve contracts format clean

quickstart: $(STAMP)
	$(BIN)/omni-portable quickstart $(ARGS)

# Tests compute on one thread each, in as many processes as there are cores, four at most. Those that need a Ray cluster
# follow in one process, which starts one for all of them (pytest's code 5 says that ARGS chose none).
test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=logical --maxprocesses=4 --dist=worksteal -m "not ray" $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m ray $(ARGS) || test $$? -eq 5

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python ci/check_core_names.py
	$(BIN)/python ci/check_sizes.py
	$(BIN)/python ci/check_torch_free.py
	$(BIN)/python ci/generate_docs.py --check
	$(BIN)/python ci/check_dockerfiles.py
	$(BIN)/python ci/check_vendor_contracts.py

bench: $(STAMP)
	$(BIN)/pytest tests/benchmarks --benchmark-only --benchmark-json=build/benchmarks.json $(ARGS)

# Both need the package index: the pins of every device, and the vendors' interfaces against their pinned packages.
resolve: $(STAMP)
	$(BIN)/python ci/resolve.py $(ARGS)

contracts: $(STAMP)
	$(BIN)/python ci/check_vendor_contracts.py --download $(ARGS)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml dockerfiles/constraints/cpu.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; run make PYTHON=python3.11")'
	@echo "installing into $(VENV): this takes a few minutes and prints little"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint dockerfiles/constraints/cpu.txt pip
	$(BIN)/python -m pip install --quiet --constraint dockerfiles/constraints/cpu.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint dockerfiles/constraints/cpu.txt --editable '.[cpu,dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
