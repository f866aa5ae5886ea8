# Everything a newcomer needs: `make run`, `make test`. A virtual environment is made in $(VENV) on first use.
PY ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PROMPT ?= Why is the sky blue?
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Tests start hundreds of processes: each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

BUILD_TOOLS := "scikit-build-core>=0.11" "nanobind>=2.4"
# The packages that assay needs, or those of an extra, a line each.
PACKAGES = $(BIN)/python -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
    print(*(p["optional-dependencies"][sys.argv[1]] if sys.argv[1:] else p["dependencies"]), sep="\n")'
# `make run` needs the kernels of this machine's fastest instruction set alone; tests try all that it has, and compile the
# others.
ISAS := $(if $(filter-out run docs cases %/.installed,$(MAKECMDGOALS)),all,fastest)
EDITABLE := -q --no-build-isolation --config-settings cmake.define.ASSAY_ISAS=all -e
NATIVE := CMakeLists.txt $(shell find native -name '*.cpp' -o -name '*.h' 2>/dev/null)

.PHONY: run test test-again test-fast lint docs sanitize arm x86 fuzz axe soak witness score engines cases clean test-gpu site cluster-demo

run: $(VENV)/.installed
	$(BIN)/assay run -p "$(PROMPT)" -n 128

# One more process than two cores: some tests wait for servers.
test: $(VENV)/.test-installed
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# The tests that failed in the last run, one after the other. More than ten are no accident of timing.
test-again: $(VENV)/.test-installed
	$(BIN)/python -m tests.failed_last --at-most 10
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test-fast: $(VENV)/.test-installed
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not slow and not long"

# The cuda engine's tests on a real card, then its memory accesses and races under compute-sanitizer. Racecheck has kernels of its own,
# whose orders it can follow: docs/lab/gpu-measured.md.
MEMCHECKED := every_type and (Q4_K or Q8_0) or variant and window or kept or usual_attention and walk or several_tokens and Q4_K or tensor_tile \
    or expert_tile or (tile_of_halves or tile_of_floats) and F16 and not BF16 or two_warps or family and (qwen3 or gemma3 or phi3)
RACECHECKED := every_type and (Q4_K or Q8_0) or variant and window or walk-four and not 128 or several_tokens and Q8_0 and (eight or parts) \
    or tensor_tile and (tensor_128 or tensor_32 or turns_32 or turns_16) or expert_tile or (tile_of_halves or tile_of_floats) and F16 and not BF16 \
    or two_warps or family and (gemma3 or phi3)
test-gpu: $(VENV)/.test-installed
	$(BIN)/pip install $(EDITABLE) ".[cuda]"
	ASSAY_TEST_GPU=1 $(BIN)/python -m pytest tests/engines/test_cuda.py tests/engines/test_cuda_experts.py tests/engines/test_cuda_serving.py \
	    tests/engines/test_cuda_recurrent.py -q
	ASSAY_TEST_GPU=1 compute-sanitizer --tool memcheck --error-exitcode 1 $(BIN)/python -m pytest tests/engines/test_cuda.py tests/engines/test_cuda_experts.py -q -k "$(MEMCHECKED)"
	ASSAY_TEST_GPU=1 ASSAY_RACECHECK=1 \
	compute-sanitizer --tool racecheck --error-exitcode 1 $(BIN)/python -m pytest tests/engines/test_cuda.py tests/engines/test_cuda_experts.py -q -k "$(RACECHECKED)"

lint: $(VENV)/.test-installed $(VENV)/.lint-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The native engine under AddressSanitizer and UndefinedBehaviorSanitizer, on the tiny models, NaN and huge weights among
# them; the team of threads and the kernels under ThreadSanitizer. `-S` keeps an editable install from shadowing the
# instrumented package.
sanitize: $(VENV)/.test-installed
	cmake -S . -B build/sanitize-threads -DASSAY_SANITIZE=thread -DASSAY_MODULE=OFF > /dev/null
	cmake --build build/sanitize-threads -j 2 --target native_tests
	TSAN_OPTIONS=halt_on_error=1 build/sanitize-threads/test_pool
	cmake -S . -B build/sanitize -DASSAY_SANITIZE=address,undefined -DPython_EXECUTABLE=$(abspath $(BIN)/python) > /dev/null
	cmake --build build/sanitize -j 2
	rm -rf build/sanitize/package && mkdir build/sanitize/package && cp -r src/assay build/sanitize/package/
	rm -f build/sanitize/package/assay/_native*.so && cp build/sanitize/_native*.so build/sanitize/package/assay/
	LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	PYTHONPATH=build/sanitize/package:$$($(BIN)/python -c 'import numpy, os; print(os.path.dirname(os.path.dirname(numpy.__file__)))') \
	$(BIN)/python -S -m pytest tests/engines/test_cpu.py tests/engines/test_extremes.py tests/engines/test_masks.py tests/engines/test_architectures.py tests/native -m "not slow" -q -p no:xdist
	ASSAY_SHIM_SANITIZE=1 LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libubsan.so) $$(c++ -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 $(BIN)/python -m pytest tests/engines/test_cuda.py tests/engines/test_cuda_experts.py tests/engines/test_cuda_serving.py -m "not slow" -q -p no:xdist

# The native self-checks built for a processor and run by an emulator that has what it can: on Arm NEON, i8mm and
# portable code, on x86 AVX2 and portable code (qemu has no AVX-512).
arm: CPU := aarch64
x86: CPU := x86_64
arm x86: CROSS ?= $(CPU)-linux-gnu-g++
arm x86:
	cmake -S . -B build/$@ -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$(CPU) -DCMAKE_CXX_COMPILER=$(CROSS) \
	    -DASSAY_MODULE=OFF > /dev/null
	cmake --build build/$@ -j 2 --target native_tests
	for check in test_kernels test_rows; do qemu-$(CPU) -L /usr/$(CPU)-linux-gnu -cpu max build/$@/$$check || exit 1; done

# Inputs that are nearly right for every reader of a stranger's bytes; guided by coverage: python -m fuzz.guided READER.
MINUTES ?= 2
fuzz: $(VENV)/.test-installed
	$(BIN)/python -m fuzz --minutes $(MINUTES)
	if command -v node > /dev/null; then node fuzz/markdown.mjs --minutes $(MINUTES); else echo "node is not installed: Markdown is not fuzzed"; fi

# The checker of access that tests/serve/page/test_access.py runs in the browser.
axe: build/axe/node_modules/axe-core/axe.min.js
build/axe/node_modules/axe-core/axe.min.js:
	npm install --silent --no-audit --no-fund --no-save --prefix build/axe axe-core@4

# Honest and hostile clients at once; fails on an honest error, other text, growing memory or a lost page. Then the longest
# gap of /health and of a stream while each kind of request arrives.
soak: $(VENV)/.test-installed
	$(BIN)/python bench/soak.py --minutes $(MINUTES)
	$(BIN)/python bench/stall.py

# Three local nodes, a stream, a node killed in its middle: the same bytes.
cluster-demo: $(VENV)/.test-installed
	$(BIN)/python bench/cluster.py demo

# llama.cpp itself: its values for a small model against the recorded ones, and the live tests. Builds it once, 10 min.
witness: $(VENV)/.test-installed
	$(BIN)/pip install $(EDITABLE) ".[llamacpp]"
	$(BIN)/python tests/verify/witness/golden.py
	$(BIN)/python -m pytest tests/verify/witness/test_witness.py -q

docs: $(VENV)/.installed
	$(BIN)/python docs/generate.py

site: $(VENV)/.test-installed  ## the documentation as pages: build/site
	$(BIN)/pip install -q "mkdocs-material>=9.5,<10"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -q

score: $(VENV)/.test-installed  ## how often the bug is named: docs/lab/score.md (an hour for everything)
	$(BIN)/python bench/score.py --again --jobs 2
	$(BIN)/python bench/score.py --again --jobs 2 --model smollm2

engines: $(VENV)/.test-installed  ## docs/lab/engines.md: other people's engines; builds llama.cpp once, 10 min
	for name in llamacpp transformers tinygrad mlx openvino mistralrs xllamacpp; do \
	  $(BIN)/pip install $(EDITABLE) ".[$$name]" || echo "$$name: does not install here"; done
	$(BIN)/python bench/engines.py --again

cases: $(VENV)/.installed  ## docs/explanation/cases.md, on TinyLlama
	$(BIN)/python bench/cases.py --again

# The packages that assay needs are fetched while its kernels are compiled. `--no-compile`: Python compiles a module when
# it is first imported, and most of theirs never are.
$(VENV)/.installed: pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PY) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile $(BUILD_TOOLS)
	$(PACKAGES) > $(VENV)/needed.txt
	$(BIN)/pip install -q --no-compile -r $(VENV)/needed.txt "setuptools>=70.1" & \
	$(BIN)/pip install -q --no-build-isolation --no-deps --config-settings cmake.define.ASSAY_ISAS=$(ISAS) -e .; built=$$?; wait $$! && exit $$built
	touch $@

# Nothing is built a second time, unless `make run` compiled one instruction set before.
$(VENV)/.test-installed $(VENV)/.lint-installed: $(VENV)/.%-installed: $(VENV)/.installed
	$(PACKAGES) $* > $(VENV)/$*.txt
	$(BIN)/pip install -q -r $(VENV)/$*.txt
	$(if $(filter test,$*),grep -qs ASSAY_ISAS:STRING=all build/cp*/CMakeCache.txt || $(BIN)/pip install $(EDITABLE) .)
	$(if $(filter test,$*),$(BIN)/python -m tests.prebuild)
	touch $@

clean:
	rm -rf build $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
