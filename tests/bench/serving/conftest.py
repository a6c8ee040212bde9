"""A small trained model behind a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from http_servers import Running, chat_package, running


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    package: Path = chat_package(tmp_path_factory.mktemp("bench-serving"))
    with running(package) as found:
        yield found
        found.wait_until_idle()
