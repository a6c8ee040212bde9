"""An S3 server for all tests of this folder; every test has a folder of its own on it."""

from collections.abc import Iterator
from typing import Any

import pytest
from s3_server import S3Server, running

from mxconv.checkpoint.store.store import Store

open_upload = Store.open_upload


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with running() as server:
        yield server


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads of many parts, and spools of many chunks, of tiny models."""
    monkeypatch.setattr("mxconv.checkpoint.store.upload.PART_BYTES", 5000)
    monkeypatch.setattr(Store, "open_upload", _open_upload)
    monkeypatch.setattr("mxconv.package.spool.CHUNK_BYTES", 700)
    monkeypatch.setattr("mxconv.package.shard_upload.READ_BYTES", 2000)


@pytest.fixture
def folder(request: pytest.FixtureRequest, s3: S3Server) -> str:
    """In the bucket, by the name of the test."""
    return "".join(character if character.isalnum() else "-" for character in request.node.name)


def _open_upload(store: Store, name: str, part_bytes: int) -> Any:
    file = open_upload(store, name, 5 << 20)  # the client takes no less
    file.blocksize = part_bytes
    return file
