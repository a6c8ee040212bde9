# make demo   set up .venv and run the main job on the embedded models
# make test   set up .venv with the test oracles and run every test
# make lint   ruff, mypy and import-linter
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint schema vectors clean

demo: .venv/core.stamp
	$(BIN)/python examples/demo.py

test: .venv/test.stamp
	$(BIN)/pytest -n 2

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

schema: .venv/core.stamp
	$(BIN)/python -m mxconv.checkpoint.manifest > formats/manifest.schema.json

vectors:
	$(PYTHON) formats/vectors/generate.py

clean:
	rm -rf .venv

.venv/core.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# torch first and alone: the packages that need it then find a version already installed
.venv/test.stamp: .venv/core.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[hf,train,test,lint]'
	touch $@
