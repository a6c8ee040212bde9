"""Tiny models and their packages; tests only read them."""

from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from packages import quantize

PYLIB = Path(__file__).parents[2] / "examples" / "models" / "pylib-1.5m"


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BF16, a head of its own; in_features 172 of down_proj is no multiple of 32."""
    return write_tiny_llama(tmp_path_factory.mktemp("interop") / "llama")


@pytest.fixture(scope="session")
def mxfp4(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    package = tmp_path_factory.mktemp("interop") / "mxfp4"
    quantize(llama, package)
    return package


@pytest.fixture(scope="session")
def bsfp(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    package = tmp_path_factory.mktemp("interop") / "bsfp"
    quantize(llama, package, codec="bsfp")
    return package


@pytest.fixture(scope="session")
def pylib_mxfp4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model whose head is tied to the embeddings."""
    package = tmp_path_factory.mktemp("interop") / "pylib"
    quantize(PYLIB, package)
    return package
