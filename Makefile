# make demo   set up .venv and run the main job on a real model of 135 million weights, which is kept in demo/
# make test   set up .venv with the test oracles and run the tests but for the slow ones
# make test-slow   run those: trainings, examples, pages of docs, builds, Ray, object stores, pages in Chromium
# make test-gpu   add Triton (198 MB to download, 691 MB installed) and run the tests of the GPU's kernels, from what it compiles
# make docs   build the site of docs/ and formats/ into build/site, with MkDocs
# make lint   ruff, clang-format, mypy and import-linter
#
# The native kernels are built by pip, with the machine's C++ compiler; without one everything runs on NumPy.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
NATIVE := CMakeLists.txt $(wildcard mxconv/kernels/native/*)

.PHONY: demo test test-slow test-gpu docs lint schema vectors clean

demo: .venv/core.stamp
	$(BIN)/python examples/demo.py

# Each process takes a stretch of the tests, in their order, so that what a module or a family needs is made once. Two
# processes keep two cores busy: threads that torch and BLAS started beside them would wait for each other.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

test: .venv/test.stamp
	$(PYTEST) -m "not slow"

test-slow: .venv/test.stamp
	$(PYTEST) -m slow

test-gpu: .venv/gpu.stamp
	$(PYTEST) tests/gpu tests/cli/test_bench.py

docs: .venv/docs.stamp
	$(BIN)/mkdocs build

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(filter mxconv/%,$(NATIVE))
	$(BIN)/mypy --cache-dir .mypy_cache/linux & linux=$$!; \
	for system in darwin win32; do \
	  $(BIN)/mypy --config-file .ci/other_systems.ini --platform $$system --cache-dir .mypy_cache/$$system || exit 1; \
	done; wait $$linux
	$(BIN)/lint-imports

schema: .venv/core.stamp
	$(BIN)/python -m mxconv.package.manifest > formats/manifest.schema.json

vectors:
	$(PYTHON) formats/vectors/generate.py

clean:
	rm -rf .venv

.venv/bin/pip:
	$(PYTHON) -m venv .venv

# For the demo only the kernel that this processor runs is compiled, for the tests every one.
# Edits of Python files take effect at once; edits of C++ files make pip build the kernels again.
.venv/core.stamp: pyproject.toml constraints.txt $(NATIVE) | .venv/bin/pip
	$(PIP) -C cmake.define.MXCONV_KERNELS=native -e '.[chat,serve]'
	@$(BIN)/python -c "import mxconv.kernels._native" 2>/dev/null || echo "mxconv: no native kernels were built \
	(pip install -v . says why); everything runs on NumPy, slowly"
	touch $@

# llama.cpp, which has to load what we export: four minutes of compiling on two cores, once
.venv/llama.stamp: constraints.txt tests/interop/llama_build.cmake | .venv/bin/pip
	CMAKE_ARGS="-DCMAKE_PROJECT_INCLUDE=$(CURDIR)/tests/interop/llama_build.cmake" \
	  $(PIP) --no-binary llama-cpp-python llama-cpp-python
	touch $@

# torch first and alone: the packages that need it then find a version already installed
.venv/test.stamp: pyproject.toml constraints.txt $(NATIVE) | .venv/bin/pip .venv/llama.stamp
	$(PIP) torch==2.13.0
	$(PIP) -e '.[hf,train,chat,serve,ray,s3,test,lint]'
	touch $@ .venv/core.stamp

# the extra `docs`, without building the kernels again
.venv/docs.stamp: constraints.txt | .venv/bin/pip
	$(PIP) mkdocs
	touch $@

# Triton alone: for Linux, and apart from the other oracles, since it is as large as all of them
.venv/gpu.stamp: constraints.txt .venv/test.stamp
	$(PIP) triton
	touch $@
