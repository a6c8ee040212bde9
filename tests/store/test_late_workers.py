"""A worker that was overtaken: whenever it is ready, nothing of it stays behind a finished conversion."""

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import files_of
from s3_server import S3Server, store

from mxconv.checkpoint.source import Checkpoint, open_checkpoint
from mxconv.checkpoint.store.store import Store
from mxconv.conversion.encode import EncodeTensor
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.errors import PackageError
from mxconv.package.file_upload import UploadFile
from mxconv.package.store_target import delete_partial, partial_of
from mxconv.workers import Advance, Piece, Result, Task, Workers, uncounted

BEGUN = f"{'0' * 64}/begun"
WAIT_SECONDS = 60.0


class LateWorker(threading.Thread):
    """Does a piece as if it had been sent to another process, and stands still in the middle."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.go_on, self.stands = threading.Event(), threading.Event()
        self.work: Callable[[], object]
        self.error: PackageError | None = None

    def run(self) -> None:
        try:
            self.work()
        except PackageError as error:
            self.error = error

    def stand(self) -> None:
        self.stands.set()
        assert self.go_on.wait(WAIT_SECONDS)

    def finish(self) -> None:
        self.go_on.set()
        self.join(WAIT_SECONDS)
        assert not self.is_alive()


class SlowStore(Store):
    """One whose requests to write small objects are long on their way."""

    def __init__(self, store: Store, late: LateWorker) -> None:
        super().__init__(store.url, PackageError)
        self._late = late

    def write(self, name: str, content: bytes) -> None:
        self._late.stand()
        super().write(name, content)


class Overtaken(Workers):
    """Threads that do everything, and a late worker that was sent the first piece of one task, too."""

    def __init__(self, late: LateWorker, task: type, *, stands_in_request: bool) -> None:
        super().__init__(2)
        self._late, self._of, self._stands_in_request = late, task, stands_in_request

    def map(
        self,
        task: Task[Piece, Result],
        pieces: Iterable[Piece],
        advance: Advance = uncounted,
        done: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        pieces = list(pieces)
        if isinstance(task, self._of):
            self._send(*pickle.loads(pickle.dumps((task, pieces[0]))))
        return super().map(task, pieces, advance, done)

    def _send(self, task: Any, piece: Any) -> None:
        late = self._late
        if self._stands_in_request:
            piece = replace(piece, sink=replace(piece.sink, store=SlowStore(piece.sink.store, late)))
            late.work = lambda: task(piece, uncounted)
        else:
            late.work = lambda: task(piece, lambda _: late.stand())
        late.start()
        assert late.stands.wait(WAIT_SECONDS)


def send(
    source: Checkpoint, folder: str, late: LateWorker, task: type, *, stands_in_request: bool = False, **options: Any
) -> None:
    """Convert beside a late worker."""
    executor = Overtaken(late, task, stands_in_request=stands_in_request)
    convert(source, store(folder), QuantizeOptions(**options), executor=lambda: executor)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoint]:
    """Open as long as a late worker reads."""
    with open_checkpoint(write_tiny_llama(tmp_path_factory.mktemp("source") / "m", num_shards=2)) as checkpoint:
        yield checkpoint


def test_a_tensor_that_is_ready_late_is_not_sent(
    s3: S3Server, folder: str, source: Checkpoint, tmp_path: Path, small_parts: None
) -> None:
    late = LateWorker()
    send(source, folder, late, EncodeTensor, codec="bsfp")
    assert late.is_alive()
    late.finish()
    assert f"{folder}.partial/" in str(late.error) and "its conversion has ended; a worker" in str(late.error)
    assert s3.files(f"{folder}.partial") == {}
    assert s3.unfinished_uploads(folder) == []
    convert(source, tmp_path / "p", QuantizeOptions(codec="bsfp"))
    assert s3.files(folder) == files_of(tmp_path / "p")


def test_a_tensor_whose_last_request_comes_late_is_deleted_by_its_worker(
    s3: S3Server, folder: str, source: Checkpoint
) -> None:
    late = LateWorker()
    send(source, folder, late, EncodeTensor, stands_in_request=True, codec="bsfp")
    assert late.is_alive()
    late.finish()
    assert "its conversion has ended" in str(late.error)
    assert s3.files(f"{folder}.partial") == {}


def test_a_tensor_that_comes_while_the_conversion_ends_is_deleted_by_the_end(
    s3: S3Server, folder: str, source: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, delete = LateWorker(), Store.delete

    def delete_later(store: Store, names: Iterable[str]) -> None:
        names = list(names)
        if [name.rpartition("/")[2] for name in names] == ["begun"]:
            late.finish()  # it finds the marker
        delete(store, names)

    monkeypatch.setattr(Store, "delete", delete_later)
    send(source, folder, late, EncodeTensor, stands_in_request=True, codec="bsfp")
    assert not late.is_alive() and late.error is None
    assert s3.files(f"{folder}.partial") == {}


def test_a_file_that_is_read_late_is_not_sent(s3: S3Server, folder: str, source: Checkpoint) -> None:
    late = LateWorker()
    send(source, folder, late, UploadFile, target="include")
    name = "model-00001-of-00002.safetensors"
    others = {each: content for each, content in s3.files(folder).items() if each != name}
    s3.delete(f"{folder}/{name}")  # somebody has other plans with this place
    late.finish()
    assert f"{name}: its conversion has ended" in str(late.error)
    assert s3.files(folder) == others
    assert s3.files(f"{folder}.partial") == {}


def test_what_another_command_has_begun_meanwhile_stays(
    s3: S3Server, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {BEGUN: b"", f"{'0' * 64}/tensors/000003": b"theirs"}
    delete = Store.delete

    def delete_and_begin(store: Store, names: Iterable[str]) -> None:
        names = list(names)
        delete(store, names)
        if names == [BEGUN]:
            for name, content in theirs.items():
                s3.put(f"{folder}.partial/{name}", content)

    for name in (*theirs, f"{'0' * 64}/tensors/000007"):
        s3.put(f"{folder}.partial/{name}", b"old")
    monkeypatch.setattr(Store, "delete", delete_and_begin)
    delete_partial(partial_of(store(folder)))
    assert s3.files(f"{folder}.partial") == theirs


def test_what_a_killed_worker_left_makes_no_other_files_ours(s3: S3Server, folder: str, source: Checkpoint) -> None:
    s3.put(f"{folder}.partial/{'0' * 64}/tensors/000003", b"late")
    s3.put(f"{folder}/notes.txt", b"mine")
    with pytest.raises(PackageError, match=r"holds notes.txt, and no interrupted conversion is beside it"):
        convert(source, store(folder), QuantizeOptions())
    assert s3.files(folder) == {"notes.txt": b"mine"}
    s3.delete(f"{folder}/notes.txt")
    convert(source, store(folder), QuantizeOptions())
    assert s3.files(f"{folder}.partial") == {}
