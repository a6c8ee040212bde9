"""Two packages for all of these tests, and a server of the first for each of their files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from http_servers import Running, chat_package, running
from packages import quantize
from trained_levels import TRAINED


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_package(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="session")
def plain_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A larger model, without a chat template."""
    folder = tmp_path_factory.mktemp("plain") / "larger"
    quantize(TRAINED.with_name("pylib-1.5m"), folder, drafts=("prompt-lookup",))
    return folder


@pytest.fixture(scope="module")
def server(package: Path) -> Iterator[Running]:
    with running(package) as found:
        yield found
        found.wait_until_idle()
