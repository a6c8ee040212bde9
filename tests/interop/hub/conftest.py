"""A hub on loopback that takes uploads, a client of it, and what they exchange."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from hub_client import Client
from hub_server import HubServer
from packages import quantize


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a card; the hub has it as org/base."""
    folder = write_tiny_llama(tmp_path_factory.mktemp("hub") / "base", num_shards=2)
    (folder / "LICENSE").write_text("Do what you like.")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: en\n---\nA tiny model.\n")
    return folder


@pytest.fixture(scope="session")
def bsfp(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """A package of one large file; tests only read it."""
    package = tmp_path_factory.mktemp("hub") / "bsfp"
    quantize(source, package, codec="bsfp")
    return package


@pytest.fixture
def hub(tmp_path: Path, source: Path) -> Iterator[HubServer]:
    with HubServer({"org/base": {"main": source}}, tmp_path / "storage") as server:
        yield server


@pytest.fixture
def client(hub: HubServer, tmp_path: Path) -> Iterator[Client]:
    made = Client(hub, tmp_path)
    yield made
    made.close()
