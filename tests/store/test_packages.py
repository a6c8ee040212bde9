"""Packages that are written to a store: the bytes that a folder gets, or an error and no package."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from commands import run_without_torch
from packages import StoppedError, files_of, quantize, stop_in
from s3_proxy import FAULTS, Line, bad, between, gone_after
from s3_server import BUCKET, S3Server, connected, store, variables

from mxconv.checkpoint.object_store import Store
from mxconv.checkpoint.source import open_checkpoint
from mxconv.cli.main import main
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.preparation import STORE_BYTES
from mxconv.convert import convert
from mxconv.errors import MxconvError, PackageError
from mxconv.package.staging import parse_target
from mxconv.rebuild import build, check_rebuild, write_recipe

MODEL = "model-00002-of-00003.safetensors"
OPTIONS: dict[str, Any] = {"codec": "bsfp", "max_shard_bytes": 60_000}
# of the source, and of the conversion
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "MXFP4": ({"num_shards": 3}, {"codec": "mxfp4", "max_shard_bytes": 9000}),
    "MXFP4, its target in shards of its own": ({"dtype": "F32"}, {"dtype": "bf16", "max_shard_bytes": 30_000}),
    "BSFP": ({"num_shards": 3}, {"codec": "bsfp", "max_shard_bytes": 60_000}),
    "BSFP with drafts": ({"dtype": "F16"}, {"codec": "bsfp", "drafts": ("checkpoint:DRAFT", "prompt-lookup")}),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source") / "m", num_shards=3)


@pytest.mark.parametrize("case", CASES)
def test_a_package_has_the_bytes_that_a_folder_gets(
    s3: S3Server, folder: str, tmp_path: Path, scratch: Path, small_parts: None, case: str
) -> None:
    of_source, options = CASES[case]
    draft = write_tiny_llama(tmp_path / "draft", seed=3, num_hidden_layers=1)
    drafts = tuple(each.replace("DRAFT", str(draft)) for each in options.get("drafts", ()))
    source = write_tiny_llama(tmp_path / "m", **of_source)
    quantize(source, tmp_path / "p", **options | {"drafts": drafts})
    quantize(source, store(folder), **options | {"drafts": drafts, "num_threads": 2})
    assert s3.files(folder) == files_of(tmp_path / "p")
    assert s3.unfinished_uploads(folder) == []
    assert not list(scratch.iterdir())


def test_what_is_no_place_for_a_package_is_refused(s3: S3Server, folder: str, source: Path) -> None:
    quantize(source, store(f"{folder}/there"))
    for force in (False, True):
        with pytest.raises(PackageError, match=r"there: a package is there; on a store one cannot be replaced"):
            quantize(source, store(f"{folder}/there"), force=force)
    with pytest.raises(PackageError, match=r"holds there/.*; an empty place is required\. Choose another"):
        quantize(source, store(folder))
    with pytest.raises(PackageError, match=r"s3://bucket: names a bucket; .* Write s3://bucket/FOLDER"):
        quantize(source, Store("s3://bucket", PackageError))
    with pytest.raises(PackageError, match=r"s3://nowhere/p.*: no such object or bucket; an existing one is required"):
        quantize(source, Store("s3://nowhere/p", PackageError))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf://me/model", "packages are not written to the Hub .* send it with `mxconv push`"),
        ("memory://here/p", "ends with this command; a folder or a store is required"),
        ("ftp://host/p", "protocol 'ftp'; one of s3, .* is required"),
        ("s3://", "names no folder"),
        ("s3://bucket/../other", "names no folder"),
        ("file:///tmp/p", "Leave file:// out"),
    ],
)
def test_what_no_package_can_be_written_to_is_refused(text: str, message: str) -> None:
    with pytest.raises(MxconvError, match=message):
        parse_target(text)


def test_a_dry_run_counts_what_a_store_takes_and_writes_nothing(
    s3: S3Server, folder: str, source: Path, tmp_path: Path
) -> None:
    def plan(output: str) -> Any:
        done = run_without_torch("quantize", str(source), "-o", output, "--codec", "bsfp", "--dry-run", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    here, there = plan(str(tmp_path / "p")), plan(f"s3://{BUCKET}/{folder}")
    assert there["package"] == f"s3://{BUCKET}/{folder}"
    assert there["worker_bytes"] == here["worker_bytes"] + STORE_BYTES
    assert s3.files(folder) == {}


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_a_recipe_gives_the_same_package_from_a_store_and_on_one(
    s3: S3Server, folder: str, source: Path, tmp_path: Path, codec: str
) -> None:
    """Made of a folder and of a store, whose MXFP4 package has a target in files of its own."""
    for path in source.iterdir():
        s3.put(f"{folder}/source/{path.name}", path.read_bytes())
    url = f"s3://{BUCKET}/{folder}/source"
    for name, origin in (("by-folder", str(source)), ("by-store", url)):
        with open_checkpoint(origin) as checkpoint:
            convert(checkpoint, tmp_path / name, QuantizeOptions(codec=codec))
        write_recipe(tmp_path / name, tmp_path / f"{name}.json")
        for number, other in enumerate((str(source), url)):
            build(tmp_path / f"{name}.json", tmp_path / f"{name}-{number}", other)
            build(tmp_path / f"{name}.json", store(f"{folder}/{name}-{number}"), other, num_threads=2)
            assert files_of(tmp_path / f"{name}-{number}") == files_of(tmp_path / name)
            assert s3.files(f"{folder}/{name}-{number}") == files_of(tmp_path / name)
            check_rebuild(tmp_path / name, other)
    assert not list(tmp_path.glob(".mxconv*"))
    s3.put(f"{folder}/source/{MODEL}", bytes(len(s3.files(f"{folder}/source")[MODEL])))
    with pytest.raises(MxconvError):
        build(tmp_path / "by-folder.json", store(f"{folder}/other"), url)
    assert s3.files(f"{folder}/other") == {}


def test_what_a_conversion_uploaded_that_was_stopped_is_deleted(
    s3: S3Server, folder: str, source: Path, scratch: Path
) -> None:
    with pytest.raises(StoppedError):
        quantize(source, store(folder), stop_in("copy"), **OPTIONS)
    assert s3.files(folder) == {} and not list(scratch.iterdir())


def test_what_a_kill_leaves_is_no_package_and_refused(s3: S3Server, folder: str, source: Path) -> None:
    command = [sys.executable, "-m", "mxconv.cli.main", "quantize", str(source), "-o", f"s3://{BUCKET}/{folder}"]
    options = ["--codec", "bsfp", "--max-shard-bytes", "60000", "--threads", "1"]
    processes: list[subprocess.Popen[bytes]] = []

    def choose(_: int) -> str:
        is_last = "bsfp.safetensors.index" in line.asked[-1]
        if is_last:
            processes[0].kill()
        return "gone" if is_last else ""

    line = Line(choose)
    with between(s3.endpoint, line):
        environment = os.environ | variables(line.url)
        processes.append(subprocess.Popen([*command, *options], env=environment, stderr=subprocess.PIPE))
        _, errors = processes[0].communicate()
    assert processes[0].returncode == -signal.SIGKILL, errors.decode()
    found = s3.files(folder)
    assert "mxconv.json" not in found and len([name for name in found if name.startswith("bsfp-")]) > 2
    with pytest.raises(
        PackageError, match=r"holds bsfp-\S+; an empty place is required\. .*\(a conversion that was killed"
    ):
        quantize(source, store(folder), **OPTIONS)
    assert s3.files(folder) == found


def test_an_object_that_somebody_else_writes_meanwhile_is_noticed(s3: S3Server, folder: str, source: Path) -> None:
    def write_over(stage: str, done: int, total: int) -> None:
        if stage == "copy" and done == total:
            s3.put(f"{folder}/config.json", b"{}")

    with pytest.raises(PackageError, match=r"config\.json: 2 bytes; [\d,]+ were uploaded\. Somebody else writes there"):
        quantize(source, store(folder), write_over, **OPTIONS)
    assert s3.files(folder) == {}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tries a request, one of them s3fs's own, in a few hundredths of a second."""
    monkeypatch.setattr("mxconv.checkpoint.object_store.WAITS_SECONDS", (0.01, 0.01))
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)


def test_a_line_that_fails_in_every_way_costs_time_only(
    s3: S3Server, folder: str, source: Path, tmp_path: Path, small_parts: None
) -> None:
    quantize(source, tmp_path / "p", **OPTIONS)
    with between(s3.endpoint, bad(3, 0.1)) as line, connected(line.url):
        quantize(source, store(folder), num_threads=2, **OPTIONS)
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
