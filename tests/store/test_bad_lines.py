"""Packages over lines that fail: the same bytes, or an error and no package."""

from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import files_of, quantize
from s3_proxy import FAULTS, bad, between
from s3_server import S3Server, connected, store

from mxconv.checkpoint.store.filesystem import open_filesystem


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source") / "m")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tries a request, in a third of a second."""
    open_filesystem("s3")
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 3)


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_a_line_that_fails_in_every_way_costs_time_only(
    s3: S3Server, folder: str, source: Path, tmp_path: Path, small_parts: None, codec: str
) -> None:
    options: dict[str, Any] = {"codec": codec, "max_shard_bytes": 60_000}
    quantize(source, tmp_path / "p", **options)
    with between(s3.endpoint, bad(3, 0.05)) as line, connected(line.url):
        quantize(source, store(folder), num_threads=2, **options)
    assert all(line.happened[fault] >= 3 for fault in FAULTS)
    assert s3.files(folder) == files_of(tmp_path / "p")
    assert s3.files(f"{folder}.partial") == {}
