"""An S3 server for all tests of this folder; every test has a folder of its own on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import S3Server, running


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with running() as server:
        yield server


@pytest.fixture(autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder that holds shards of conversions, for processes that tests start, too."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "mxconv" / "conversions").mkdir(parents=True)
    monkeypatch.setenv("HF_ASSETS_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(cache))
    return cache / "mxconv" / "conversions"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads of many parts, of tiny models."""
    monkeypatch.setattr("mxconv.checkpoint.object_store.PART_BYTES", 5000)


@pytest.fixture
def folder(request: pytest.FixtureRequest, s3: S3Server) -> str:
    """In the bucket, by the name of the test."""
    return "".join(character if character.isalnum() else "-" for character in request.node.name)
