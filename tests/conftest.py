"""Hypothesis without deadlines, since tests also run on busy machines; in CI the same examples every time.

Where a shell started the tests in the background, they ignore Ctrl-C, and so would every process that they start; they
take it as usual.
"""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from mxconv.kernels.engine import native_names

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("mxconv", deadline=None, max_examples=50, derandomize="CI" in os.environ)
settings.load_profile("mxconv")

SLOW = ("cluster", "store", "train", "serving/http/test_page.py", "test_examples.py", "test_packaging.py")


PLACES = tuple(str(Path(__file__).parent / name) for name in SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no slow file, nor what it imports, where its tests are not to run."""
    return True if config.option.markexpr == "not slow" and str(collection_path).startswith(PLACES) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of some folders and files as slow."""
    for item in items:
        if str(item.path).startswith(PLACES):
            item.add_marker("slow")


SHARED_MODELS = os.environ.get("MXCONV_TEST_MODELS")


def shared_folders() -> list[Any]:
    if SHARED_MODELS is None:
        return [pytest.param(None, id="none", marks=pytest.mark.skip(reason="MXCONV_TEST_MODELS is not set"))]
    return [pytest.param(folder, id=folder.name) for folder in sorted(Path(SHARED_MODELS).iterdir())]


@pytest.fixture(scope="session", params=shared_folders())
def shared_folder(request: pytest.FixtureRequest) -> Path:
    """Every trained model folder in MXCONV_TEST_MODELS in turn."""
    folder: Path = request.param
    return folder


@pytest.fixture(params=["numpy", *native_names()[:1]])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The reference, and one native implementation for all: what is loaded how depends on no instruction set."""
    name: str = request.param
    monkeypatch.setenv("MXCONV_KERNEL", name)
    return name
