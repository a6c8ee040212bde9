"""Prints what the tests that run on an emulated aarch64 need: mxconv's dependencies and a few of its test extras."""

import tomllib
from pathlib import Path

FOR_TESTS = ("pytest", "pytest-xdist", "hypothesis", "jsonschema")

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
for_tests = [line for line in project["optional-dependencies"]["test"] if line.split(">")[0] in FOR_TESTS]
print(*project["dependencies"], *for_tests)
