"""Packages to export; tests only read them."""

import json
import os
from pathlib import Path

import pytest
from gguf_models import MODELS, write_model
from packages import quantize

EXAMPLES = Path(__file__).parents[2] / "examples"
SHARED_MODELS = os.environ.get("MXCONV_TEST_MODELS")


@pytest.fixture(scope="session")
def python_prompts() -> list[str]:
    lines = (EXAMPLES / "prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines[:20]]


@pytest.fixture(scope="session")
def pylib_mxfp4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model whose head is tied to the embeddings."""
    package = tmp_path_factory.mktemp("gguf") / "pylib"
    quantize(EXAMPLES / "models" / "pylib-1.5m", package)
    return package


@pytest.fixture(scope="session", params=MODELS)
def random_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source folder of each kind."""
    return write_model(tmp_path_factory.mktemp("gguf") / "model", **MODELS[request.param])


@pytest.fixture(scope="session")
def random_package(tmp_path_factory: pytest.TempPathFactory, random_model: Path) -> Path:
    package = tmp_path_factory.mktemp("gguf") / "package"
    quantize(random_model, package)
    return package


@pytest.fixture(scope="session", params=["stories260K-bf16", "babyllama105-bf16"])
def story_model(request: pytest.FixtureRequest) -> Path:
    """Trained models with SentencePiece tokenizers; with bytes, and without."""
    if SHARED_MODELS is None:
        pytest.skip("MXCONV_TEST_MODELS names no folder of story models")
    return Path(SHARED_MODELS) / request.param


@pytest.fixture(scope="session")
def story_package(tmp_path_factory: pytest.TempPathFactory, story_model: Path) -> Path:
    package = tmp_path_factory.mktemp("gguf") / story_model.name
    quantize(story_model, package)
    return package
