"""One package for all of these tests, and a server for each of their files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from http_servers import Running, chat_package, running


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_package(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="module")
def server(package: Path) -> Iterator[Running]:
    with running(package) as found:
        yield found
        found.wait_until_idle()
