"""Packages with every kind of file, made once; every test breaks a copy of its own."""

import shutil
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from packages import quantize

SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1}


def make_packages(folder: Path) -> dict[str, Path]:
    """A package of each codec with every kind of file: shards, indexes, linked weights, companions, nested drafts."""
    source = write_tiny_llama(folder / "m", num_shards=2, **SMALL)
    draft = write_tiny_llama(folder / "tiny", seed=1, num_shards=2, **SMALL)
    quantize(draft, folder / "nested", codec="bsfp", segments="paper")
    quantize(source, folder / "mxfp4", max_shard_bytes=3000, drafts=(f"package:{folder / 'nested'}",))
    quantize(source, folder / "bsfp", codec="bsfp", max_shard_bytes=17_000, drafts=(f"checkpoint:{draft}",))
    return {"mxfp4": folder / "mxfp4", "bsfp": folder / "bsfp"}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture(params=["mxfp4", "bsfp"])
def package(made: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy that the test may break."""
    return Path(shutil.copytree(made[request.param], tmp_path / "p"))
