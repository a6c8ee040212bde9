"""Packages on a store whose conversion was killed, or stopped: the same command goes on, and ends in the same bytes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors, write_tiny_llama
from packages import StoppedError, files_of, quantize, stop_after
from s3_proxy import Line, between
from s3_server import BUCKET, S3Server, connected, store, variables

from mxconv.errors import PackageError

NUM_TENSORS = 24
NUM_TENSORS_TINY = 21
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


def spools(s3: S3Server, folder: str) -> list[str]:
    """Keys of the finished tensors."""
    found = s3.files(f"{folder}.partial")
    return [f"{folder}.partial/{name}" for name in sorted(found) if "/tensors/" in name]


def finish(source: Path, folder: str, num_tensors: int, **options: Any) -> int:
    """Convert, and count the tensors that an earlier run had finished; they must be of one size."""
    reports: list[tuple[int, int]] = []

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "encode":
            reports.append((done, total))

    quantize(source, store(folder), progress, **options)
    done, total = reports[0]
    return done * num_tensors // total


def resume(source: Path, folder: str, **options: Any) -> int:
    """The same of tensors of any size, each of one slice."""
    calls: list[int] = []

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "encode":
            calls.append(done)

    quantize(source, store(folder), progress, **options)
    return NUM_TENSORS_TINY - (len(calls) - 1)


def test_a_command_that_is_killed_at_any_request_goes_on_when_it_is_given_again(
    s3: S3Server, folder: str, source: Path, tmp_path: Path
) -> None:
    quantize(source, tmp_path / "p", **OPTIONS)
    num_in_the_middle = 0
    for number in (20, 40, 55, 75):
        place = f"{folder}-{number}"
        num_finished = kill_at(s3, source, place, number)
        assert "mxconv.json" not in s3.files(place)
        num_in_the_middle += 0 < num_finished < NUM_TENSORS
        assert finish(source, place, NUM_TENSORS, **OPTIONS) == num_finished
        assert s3.files(place) == files_of(tmp_path / "p")
        assert s3.files(f"{place}.partial") == {}
    assert num_in_the_middle >= 2


def kill_at(s3: S3Server, source: Path, place: str, number: int) -> int:
    """Convert in a process that is killed with a request on its way; how many tensors are finished then."""
    command = [sys.executable, "-m", "mxconv.cli.main", "quantize", str(source), "-o", f"s3://{BUCKET}/{place}"]
    options = ["--codec", "bsfp", "--segments", "paper", "--max-shard-bytes", "3000000", "--threads", "2"]
    processes: list[subprocess.Popen[bytes]] = []

    def choose(found: int) -> str:
        if found >= number:
            processes[0].kill()
        return "gone" if found >= number else ""

    with between(s3.endpoint, Line(choose)) as line:
        environment = os.environ | variables(line.url)
        processes.append(subprocess.Popen([*command, *options], env=environment, stderr=subprocess.PIPE))
        _, errors = processes[0].communicate()
    assert processes[0].returncode == -signal.SIGKILL, errors.decode()
    return len(spools(s3, place))


def interrupt(source: Path, folder: str, num_tensors: int = 9, **options: Any) -> None:
    with pytest.raises(StoppedError):
        quantize(source, store(folder), stop_after(num_tensors), **options)


def stop_in(wanted: str) -> Any:
    def progress(stage: str, done: int, total: int) -> None:
        if stage == wanted:
            raise StoppedError

    return progress


def test_what_is_damaged_is_done_again(s3: S3Server, folder: str, tiny: Path, tmp_path: Path) -> None:
    quantize(tiny, tmp_path / "p", codec="bsfp")
    interrupt(tiny, folder, codec="bsfp")
    keys = spools(s3, folder)
    contents = [s3.files(f"{folder}.partial")[key.removeprefix(f"{folder}.partial/")] for key in keys]
    bad = [
        b"",
        b"mxspool1",
        contents[1][:-1],
        contents[2][:-16] + (1 << 60).to_bytes(8, "little") + b"mxspool1",
        contents[3].replace(b'"crc32": ', b'"crc32": -'),
        contents[4],  # another tensor's
        contents[6].replace(b'"chunks": [[', b'"chunks": [[9'),
    ]
    for key, content in zip(keys, bad, strict=False):
        s3.put(key, content)
    assert resume(tiny, folder, codec="bsfp") == len(keys) - len(bad)
    assert s3.files(folder) == files_of(tmp_path / "p")


def test_other_bytes_under_a_good_footer_are_noticed(s3: S3Server, folder: str, tiny: Path, tmp_path: Path) -> None:
    interrupt(tiny, folder, codec="bsfp")
    key = spools(s3, folder)[2]
    content = s3.files(f"{folder}.partial")[key.removeprefix(f"{folder}.partial/")]
    s3.put(key, bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(PackageError, match=rf"{key}: its bytes of .* have the CRC-32 .* Delete this object, and run"):
        resume(tiny, folder, codec="bsfp")
    s3.delete(key)
    resume(tiny, folder, codec="bsfp")
    quantize(tiny, tmp_path / "p", codec="bsfp")
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
        assert resume(source, folder, **options) == NUM_TENSORS_TINY - 1
    sent = [name for name in shards if f"PUT /{BUCKET}/{folder}/{name}" in line.asked]
    assert len(sent) == 1
    quantize(source, tmp_path / "p", **options)
    assert s3.files(folder) == files_of(tmp_path / "p")


def test_files_that_are_there_are_not_sent_again(s3: S3Server, folder: str, tiny: Path, tmp_path: Path) -> None:
    def progress(stage: str, done: int, total: int) -> None:
        if stage == "copy" and done == total:
            raise StoppedError

    with pytest.raises(StoppedError):
        quantize(tiny, store(folder), progress)
    (tiny / "LICENSE").write_text("late")
    s3.put(f"{folder}/config.json", b"{}")  # companions are taken as they are now
    line = Line(lambda _: "")
    with between(s3.endpoint, line), connected(line.url):
        assert resume(tiny, folder) == 15  # those that are stored: norms and the embedding are the target's alone
    written = {asked.split(f"{folder}/")[1] for asked in line.asked if asked.startswith(f"PUT /{BUCKET}/{folder}/")}
    quantize(tiny, tmp_path / "p")
    found = files_of(tmp_path / "p")
    assert s3.files(folder) == found
    assert written == {name for name in found if not name.endswith(".safetensors")}
    (tiny / "LICENSE").unlink()


def test_other_options_begin_anew(s3: S3Server, folder: str, tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        quantize(tiny, store(folder), stop_in("copy"), codec="bsfp")
    assert resume(tiny, folder, scale_rule="ceil") == 0
    quantize(tiny, tmp_path / "p", scale_rule="ceil")
    assert s3.files(folder) == files_of(tmp_path / "p")
    assert s3.files(f"{folder}.partial") == {}
