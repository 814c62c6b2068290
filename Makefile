# `make demo` and `make test` set up what they need in $(VENV), from nothing but python3 and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A C++ compiler links what is exported; where the machine has none, one comes as a Python package.
COMPILER := $(if $(shell command -v g++ || command -v clang++),,ziglang)

# Every kernel of the cases is tried under each; operands lie in memory of their own, where accesses past them show.
SANITIZERS := memcheck racecheck initcheck synccheck

# A process a core, each with a row of files: what the tests of a file share is then made once.
SIDE_BY_SIDE := -n auto --dist worksteal

# Each process that the tests start would compile the package anew where the user keeps no bytecode.
export PYTHONDONTWRITEBYTECODE :=

# Of what is installed a third is ever imported, and compiled then: pip would compile all of it, in half a minute.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile --editable

# Tests of each room that need neither torch, whose lowest version comes with 5 GB for GPUs, nor the rest of `dev`.
LOWEST_TESTS := $(addprefix tests/,autotvm/test_measure.py autotvm/test_record.py bench/test_report.py \
  cli/test_commands.py network/runtime/test_network.py runtime/test_calls.py runtime/test_operators.py \
  runtime/test_storage.py)

.PHONY: demo test lowest coverage guard release-check sanitize $(SANITIZERS) lint format docs clean

demo: $(VENV)/demo-installed
	$(BIN)/python examples/shufflenet.py

test: $(VENV)/test-installed
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

lowest: $(VENV)-lowest/installed
	$(VENV)-lowest/bin/python -m pytest $(SIDE_BY_SIDE) $(LOWEST_TESTS)

coverage: $(VENV)/test-installed
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --cov --cov-report=term-missing

guard: $(VENV)/test-installed
	$(BIN)/python -m tests.guard

release-check: $(VENV)/test-installed
	$(BIN)/python -m tests.release_check

sanitize: $(SANITIZERS)

$(SANITIZERS): $(VENV)/test-installed
	PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $@ --error-exitcode 9 \
	  $(BIN)/python -m pytest -k configuration tests/schedules/cuda/test_gpu.py

lint: $(VENV)/test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/test-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/docs-installed
	$(BIN)/python docs/reference.py build/docs

clean:
	rm -rf $(VENV) $(VENV)-lowest build dist *.egg-info

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo-installed: $(BIN)/python pyproject.toml
	$(BIN)/python $(INSTALL) '.[onnx]' $(COMPILER)
	touch $@

$(VENV)/test-installed: $(BIN)/python pyproject.toml
	$(BIN)/python $(INSTALL) '.[cuda,dev,onnx,torch]' $(COMPILER)
	touch $@

$(VENV)/docs-installed: $(BIN)/python pyproject.toml
	$(BIN)/python $(INSTALL) '.[docs,torch,tune]'
	touch $@

$(VENV)-lowest/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-lowest
	$(PYTHON) tests/lowest_versions.py onnx tune > $(VENV)-lowest/constraints.txt
	$(VENV)-lowest/bin/python $(INSTALL) '.[onnx,tune]' pytest pytest-xdist $(COMPILER) \
	  --constraint $(VENV)-lowest/constraints.txt
	touch $@
