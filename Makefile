# Everything a newcomer needs: `make run`, `make test`. A virtual environment is made in $(VENV) on first use.
PY ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PROMPT ?= Why is the sky blue?
export PIP_DISABLE_PIP_VERSION_CHECK = 1

BUILD_TOOLS := "scikit-build-core>=0.11" "nanobind>=2.4"
NATIVE := CMakeLists.txt $(shell find native -name '*.cpp' -o -name '*.h' 2>/dev/null)

.PHONY: run test test-fast lint docs clean

run: $(VENV)/.installed
	$(BIN)/assay run -p "$(PROMPT)" -n 128

test: $(VENV)/.test-installed
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-fast: $(VENV)/.test-installed
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

lint: $(VENV)/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed
	$(BIN)/python docs/generate.py

$(VENV)/.installed: pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PY) -m venv $(VENV)
	$(BIN)/pip install -q $(BUILD_TOOLS)
	$(BIN)/pip install -q --no-build-isolation -e .
	touch $@

$(VENV)/.test-installed: $(VENV)/.installed
	$(BIN)/pip install -q --no-build-isolation -e ".[serve,test,lint]"
	touch $@

clean:
	rm -rf build $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
