PY ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: run test test-fast lint types clean

$(VENV)/installed: pyproject.toml CMakeLists.txt $(wildcard native/*)
	test -x $(BIN)/python || $(PY) -m venv $(VENV)
	$(BIN)/pip install -q "scikit-build-core>=0.11" "nanobind>=2.4"
	$(BIN)/pip install -q --no-build-isolation -e .
	touch $@

$(VENV)/test-installed: $(VENV)/installed
	$(BIN)/pip install -q --no-build-isolation -e ".[test,lint,serve]"
	touch $@
