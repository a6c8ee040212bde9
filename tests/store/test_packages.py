"""Packages that are written to a store: the bytes of those that a folder gets."""

from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import files_of, quantize
from s3_server import S3Server, store

OPTIONS = [
    {"codec": "mxfp4", "max_shard_bytes": 9000},
    {"codec": "bsfp", "max_shard_bytes": 60_000},
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source") / "m", num_shards=3)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options["codec"])
def test_a_package_has_the_bytes_that_a_folder_gets(
    s3: S3Server, folder: str, source: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    quantize(source, tmp_path / "p", **options)
    quantize(source, store(folder), num_threads=2, **options)
    found = s3.files(folder)
    assert len([name for name in found if name.startswith(options["codec"])]) > 2
    assert found == files_of(tmp_path / "p")
    assert s3.files(f"{folder}.partial") == {}
    assert s3.unfinished_uploads() == []
