"""Shards that other processes send: pickled, told what is ready, asked for reports, as a cluster does it."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import StoppedError, files_of
from s3_proxy import Line, between
from s3_server import BUCKET, S3Server, connected, store

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.errors import PackageError
from mxconv.package.shard_upload import ShardUpload
from mxconv.progress import Progress, silent
from mxconv.workers import Stream, Workers


class Sent:
    """A stream whose copy does the work."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._copy = stream, None
        self.ready = 0

    def is_ready(self) -> bool:
        return self._stream.is_ready()

    def advance(self) -> bool:
        self._copy = self._copy or pickle.loads(pickle.dumps(self._stream))
        self._copy.ready = self._stream.ready
        goes_on = self._copy.advance()
        self._stream.accept(self._copy.report())
        return goes_on

    def report(self) -> Any: ...
    def accept(self, report: Any) -> None: ...


class Sending(Workers):
    """Threads, but for shards."""

    def add_stream(self, stream: Stream) -> None:
        super().add_stream(Sent(stream) if isinstance(stream, ShardUpload) else stream)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source") / "m")


def send(source: Path, folder: str, progress: Progress = silent) -> None:
    options = QuantizeOptions(codec="bsfp", segments="paper", max_shard_bytes=60_000)
    with open_checkpoint(source) as checkpoint:
        convert(checkpoint, store(folder), options, progress, executor=lambda: Sending(2))


def during(stage: str, do: Callable[[], object]) -> Progress:
    """Do something when a stage begins."""
    done: list[str] = []

    def progress(name: str, _: int, __: int) -> None:
        if name == stage and not done:
            done.append(name)
            do()

    return progress


def stop() -> None:
    raise StoppedError


def test_a_copy_sends_the_same_and_what_is_there_is_not_sent_again(
    s3: S3Server, folder: str, source: Path, tmp_path: Path, small_parts: None
) -> None:
    with pytest.raises(StoppedError):
        send(source, folder, during("copy", stop))
    shards = {name for name in s3.files(folder) if name.startswith("bsfp")}
    assert len(shards) > 2
    line = Line(lambda _: "")
    with between(s3.endpoint, line), connected(line.url):
        send(source, folder)
    assert not any(asked.startswith(("PUT", "POST")) and "/bsfp-" in asked for asked in line.asked)
    with open_checkpoint(source) as checkpoint:
        options = QuantizeOptions(codec="bsfp", segments="paper", max_shard_bytes=60_000)
        convert(checkpoint, tmp_path / "p", options)
    assert s3.files(folder) == files_of(tmp_path / "p")


def test_a_shard_that_somebody_wrote_over_is_sent_again(
    s3: S3Server, folder: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(StoppedError):
        send(source, folder, during("copy", stop))
    name, content = next(item for item in s3.files(folder).items() if item[0].startswith("bsfp"))
    s3.put(f"{folder}/{name}", bytes(len(content)))
    send(source, folder)
    assert s3.files(folder)[name] == content


class EndsBeforeShards(Sending):
    """One thread: when the last tensor is there the shard is not, and then somebody does something."""

    def __init__(self, do: Callable[[], object]) -> None:
        super().__init__(1)
        self._do = do

    def finish_streams(self) -> None:
        self._do()
        super().finish_streams()


def test_a_worker_that_outlives_its_conversion_finishes_no_shard(s3: S3Server, folder: str, source: Path) -> None:
    def end() -> None:
        for name in s3.files(f"{folder}.partial"):
            if name.endswith("/begun"):
                s3.delete(f"{folder}.partial/{name}")

    options = QuantizeOptions(codec="bsfp")
    with open_checkpoint(source) as checkpoint:
        message = rf"s3://{BUCKET}/{folder}/bsfp.safetensors: its conversion has ended; a worker"
        with pytest.raises(PackageError, match=message):
            convert(checkpoint, store(folder), options, executor=lambda: EndsBeforeShards(end))
    assert s3.files(folder) == {}
