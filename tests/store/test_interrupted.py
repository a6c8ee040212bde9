"""Packages on a store whose conversion was killed, or stopped: the same command goes on, and ends in the same bytes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors, write_tiny_llama
from packages import StoppedError, files_of, quantize, stop_in
from s3_proxy import Line, between
from s3_server import BUCKET, S3Server, connected, store, variables

from mxconv.errors import PackageError

NUM_TENSORS = 24
OPTIONS: dict[str, Any] = {"codec": "bsfp", "segments": "paper", "max_shard_bytes": 3_000_000}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 MB in 24 matrices of one size."""
    rng = np.random.default_rng(0)
    block = (rng.standard_normal((512, 512)) * 0.02).astype(ml_dtypes.bfloat16)
    tensors = {f"layers.{n:02}.weight": np.roll(block, 1000 * n) for n in range(NUM_TENSORS)}
    return write_safetensors(tmp_path_factory.mktemp("m") / "model.safetensors", tensors)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "m", num_shards=2)


def finish(source: Path, folder: str, **options: Any) -> float:
    """Convert; the part of all bytes that an earlier run had finished."""
    reports: list[tuple[int, int]] = []

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "encode":
            reports.append((done, total))

    quantize(source, store(folder), progress, **options)
    return reports[0][0] / reports[0][1]


@pytest.mark.parametrize(
    ("request_of", "least", "most"),
    [("GET", 0, 0), ("PUT bsfp-00003", 0, 0.75), ("PUT bsfp.safetensors.index", 1, 1)],
)
def test_a_command_that_is_killed_at_any_request_goes_on_when_it_is_given_again(
    s3: S3Server, folder: str, source: Path, tmp_path: Path, request_of: str, least: float, most: float
) -> None:
    quantize(source, tmp_path / "p", **OPTIONS)
    kill_at(s3, source, folder, request_of)
    assert "mxconv.json" not in s3.files(folder)
    assert least <= finish(source, folder, **OPTIONS) <= most
    assert s3.files(folder) == files_of(tmp_path / "p")


def kill_at(s3: S3Server, source: Path, folder: str, request_of: str) -> None:
    """Convert in a process that is killed with a request on its way."""
    command = [sys.executable, "-m", "mxconv.cli.main", "quantize", str(source), "-o", f"s3://{BUCKET}/{folder}"]
    options = ["--codec", "bsfp", "--segments", "paper", "--max-shard-bytes", "3000000", "--threads", "2"]
    processes: list[subprocess.Popen[bytes]] = []

    def choose(_: int) -> str:
        asked = line.asked[-1].replace(f"/{BUCKET}/{folder}/", "")
        if asked.startswith(request_of):
            processes[0].kill()
        return "gone" if asked.startswith(request_of) else ""

    line = Line(choose)
    with between(s3.endpoint, line):
        environment = os.environ | variables(line.url)
        processes.append(subprocess.Popen([*command, *options], env=environment, stderr=subprocess.PIPE))
        _, errors = processes[0].communicate()
    assert processes[0].returncode == -signal.SIGKILL, errors.decode()


def test_an_object_that_somebody_wrote_over_is_uploaded_again(
    s3: S3Server, folder: str, tiny: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"codec": "bsfp", "max_shard_bytes": 60_000}
    with pytest.raises(StoppedError):
        quantize(tiny, store(folder), stop_in("copy"), **options)
    shards = {name: content for name, content in s3.files(folder).items() if name.startswith("bsfp-")}
    assert len(shards) > 2
    name = min(shards)
    s3.put(f"{folder}/{name}", bytes(len(shards[name])))
    assert 0 < finish(tiny, folder, **options) < 1
    quantize(tiny, tmp_path / "p", **options)
    assert s3.files(folder) == files_of(tmp_path / "p")


@pytest.mark.parametrize("spoil", [lambda text: "", lambda text: text[20:]])
def test_a_damaged_journal_costs_time(
    s3: S3Server, folder: str, tiny: Path, tmp_path: Path, scratch: Path, spoil: Callable[[str], str]
) -> None:
    with pytest.raises(StoppedError):
        quantize(tiny, store(folder), stop_in("copy"), codec="bsfp", max_shard_bytes=60_000)
    (journal,) = scratch.rglob(".mxconv-journal")
    journal.write_text(spoil(journal.read_text()))
    if not journal.read_text():  # nothing says any more that the objects are ours
        with pytest.raises(PackageError, match=r"which no interrupted conversion of this machine uploaded"):
            finish(tiny, folder, codec="bsfp", max_shard_bytes=60_000)
        return
    assert finish(tiny, folder, codec="bsfp", max_shard_bytes=60_000) < 1
    quantize(tiny, tmp_path / "p", codec="bsfp", max_shard_bytes=60_000)
    assert s3.files(folder) == files_of(tmp_path / "p")


def test_a_changed_tensor_is_encoded_again_and_its_shard_sent_again(s3: S3Server, folder: str, tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "m")
    options: dict[str, Any] = {"codec": "bsfp", "segments": "paper", "max_shard_bytes": 60_000}
    with pytest.raises(StoppedError):
        quantize(source, store(folder), stop_in("copy"), **options)
    shards = [name for name in s3.files(folder) if name.startswith("bsfp")]
    assert len(shards) > 2
    weights = source / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1  # of the last tensor
    weights.write_bytes(content)
    line = Line(lambda _: "")
    with between(s3.endpoint, line), connected(line.url):
        assert 0.5 < finish(source, folder, **options) < 1
    sent = [name for name in shards if f"PUT /{BUCKET}/{folder}/{name}" in line.asked]
    assert len(sent) == 1
    quantize(source, tmp_path / "p", **options)
    assert s3.files(folder) == files_of(tmp_path / "p")


def test_files_that_are_there_are_not_sent_again(s3: S3Server, folder: str, tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        quantize(tiny, store(folder), stop_in("copy", at_end=True))
    (tiny / "LICENSE").write_text("late")
    s3.put(f"{folder}/config.json", b"{}")  # companions are taken as they are now
    line = Line(lambda _: "")
    with between(s3.endpoint, line), connected(line.url):
        assert finish(tiny, folder) > 0.5  # what is stored: norms and the embedding are the target's alone
    written = {asked.split(f"{folder}/")[1] for asked in line.asked if asked.startswith(f"PUT /{BUCKET}/{folder}/")}
    quantize(tiny, tmp_path / "p")
    found = files_of(tmp_path / "p")
    assert s3.files(folder) == found
    large = {name for name in found if name.endswith(".safetensors")}
    assert found.keys() - large <= written
    assert written & large <= {"model-00002-of-00002.safetensors"}  # the one that was on its way
    (tiny / "LICENSE").unlink()
