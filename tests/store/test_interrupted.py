"""Conversions to a store that end early: there is no package, and what was uploaded is deleted or refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import StoppedError, quantize, stop_in
from s3_proxy import Line, between
from s3_server import BUCKET, S3Server, store, variables

from mxconv.errors import PackageError

OPTIONS: dict[str, Any] = {"codec": "bsfp", "max_shard_bytes": 60_000}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source") / "m", num_shards=2)


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
