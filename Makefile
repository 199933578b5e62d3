# Two commands need nothing before them: `make quickstart` runs the main job on a CPU, `make test` runs the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ENGINES := $(VENV)/.engines
# Each file of these starts engines in processes of their own, which its tests share: they run one after another.
ENGINE_TESTS := tests/backends/rollout/vllm tests/backends/rollout/vllm_omni tests/models/test_engine_layouts.py \
	$(wildcard tests/e2e/test_e2e_engines*.py)
PARALLEL := --numprocesses=logical --maxprocesses=4 --dist=worksteal

.PHONY: quickstart setup test check setup-engines test-engines bench resolve contracts format clean

quickstart: $(STAMP)
	$(BIN)/omni-portable quickstart $(ARGS)

# The environment alone; every other target makes it, too, if it is not there.
setup: $(STAMP)

# Tests compute on one thread each, in as many processes as there are cores, four at most. Those that need a Ray cluster
# follow in one process, which starts one for all of them (pytest's code 5 says that ARGS chose none); so do those of
# vLLM and vLLM-Omni, where these are installed (elsewhere they skip themselves).
test: check
ifeq ($(wildcard $(ENGINES))$(ARGS),$(ENGINES))
	OMP_NUM_THREADS=1 $(BIN)/pytest $(PARALLEL) -m "not ray" $(addprefix --ignore=,$(ENGINE_TESTS))
	OMP_NUM_THREADS=1 $(BIN)/pytest $(ENGINE_TESTS)
else
	OMP_NUM_THREADS=1 $(BIN)/pytest $(PARALLEL) -m "not ray" $(ARGS)
endif
	OMP_NUM_THREADS=1 $(BIN)/pytest -m ray $(ARGS) || test $$? -eq 5

# vLLM and vLLM-Omni in the same environment (docs/engines.md), and the tests that need them.
setup-engines: $(ENGINES)

test-engines: $(ENGINES)
	OMP_NUM_THREADS=1 $(BIN)/pytest $(ENGINE_TESTS) $(ARGS)

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

$(ENGINES): $(STAMP) ci/setup_engines.py tools/cpu_torch_companions/omni_cpu_companions.py
	$(BIN)/python ci/setup_engines.py
	touch $(ENGINES)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
