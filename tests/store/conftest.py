"""An S3 server for all tests of this folder; every test has a folder of its own on it."""

from collections.abc import Iterator

import pytest
from s3_server import S3Server, running


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with running() as server:
        yield server


@pytest.fixture
def folder(request: pytest.FixtureRequest, s3: S3Server) -> str:
    """In the bucket, by the name of the test."""
    return "".join(character if character.isalnum() else "-" for character in request.node.name)
