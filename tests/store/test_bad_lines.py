"""Packages over lines that fail: the same bytes, or an error and no package."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import files_of, quantize
from s3_proxy import FAULTS, Line, bad, between, gone_after
from s3_server import BUCKET, S3Server, connected, store

from mxconv.checkpoint.object_store import Store
from mxconv.cli.main import main
from mxconv.errors import PackageError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source") / "m")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tries a request, one of them s3fs's own, in a few hundredths of a second."""
    monkeypatch.setattr("mxconv.checkpoint.object_store.WAITS_SECONDS", (0.01, 0.01))
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)


def test_a_line_that_fails_in_every_way_costs_time_only(
    s3: S3Server, folder: str, source: Path, tmp_path: Path, small_parts: None
) -> None:
    options: dict[str, Any] = {"codec": "bsfp", "max_shard_bytes": 60_000}
    quantize(source, tmp_path / "p", **options)
    with between(s3.endpoint, bad(3, 0.1)) as line, connected(line.url):
        quantize(source, store(folder), num_threads=2, **options)
    assert all(line.happened[fault] >= 1 for fault in FAULTS)
    assert s3.files(folder) == files_of(tmp_path / "p")
    assert s3.files(f"{folder}.partial") == {}


@pytest.mark.parametrize("num_requests", [0, 12])
def test_a_store_that_goes_away_ends_the_command_with_an_error_and_leaves_no_package(
    s3: S3Server,
    folder: str,
    source: Path,
    impatient: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    num_requests: int,
) -> None:
    url = f"s3://{BUCKET}/{folder}"
    words = ["quantize", str(source), "-o", url, "--codec", "bsfp", "--max-shard-bytes", "60000", "--threads", "2"]
    monkeypatch.setattr(sys, "argv", ["mxconv", *words])
    with between(s3.endpoint, gone_after(num_requests)) as line, connected(line.url):
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
    said = capsys.readouterr().err
    reason = r"the store gives no good answer \(\w+: .*\), tried seven times; a connection to it is required"
    assert re.search(rf"{url}[^:]*: {reason}", said)
    assert line.happened["gone"] >= 3  # it was asked again
    assert "mxconv.json" not in s3.files(folder)


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.read("a", 0, 4),
        lambda store: store.read_all("a"),
        lambda store: store.write("b", b"new"),
        lambda store: store.look("a"),
        lambda store: store.looks(),
        lambda store: store.delete(["a"]),
    ],
    ids=["read", "read_all", "write", "look", "looks", "delete"],
)
def test_every_request_is_tried_as_often_as_the_policy_says(
    s3: S3Server, folder: str, impatient: None, ask: Callable[[Store], Any]
) -> None:
    s3.put(f"{folder}/a", b"text")
    with (
        between(s3.endpoint, gone_after(0)) as line,
        connected(line.url),
        pytest.raises(PackageError, match="the store gives no good answer"),
    ):
        ask(store(folder))
    assert line.happened["gone"] in (3, 6)  # aiohttp sends what does not matter twice once more by itself


def test_an_upload_whose_last_answer_is_lost_has_happened(
    s3: S3Server, folder: str, small_parts: None, tmp_path: Path
) -> None:
    content = bytes(range(256)) * 50
    (tmp_path / "a").write_bytes(content)
    line = Line(lambda number: "cut after" if number == 4 else "")  # begin, three parts, the end
    with between(s3.endpoint, line), connected(line.url):
        store(folder).put(tmp_path / "a", "a")
    assert line.happened["cut after"] == 1
    assert s3.files(folder) == {"a": content}
    assert s3.unfinished_uploads(folder) == []


def test_an_upload_that_ends_in_an_error_leaves_nothing(
    s3: S3Server, folder: str, small_parts: None, impatient: None, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(bytes(12_000))
    with (
        between(s3.endpoint, gone_after(4)) as line,
        connected(line.url),
        pytest.raises(PackageError, match="the store gives no good answer"),
    ):
        store(folder).put(tmp_path / "a", "a")
    assert s3.files(folder) == {}
