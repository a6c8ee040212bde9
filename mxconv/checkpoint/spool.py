"""Shards of a Hub repository that are on the disk only while they are read: downloaded whole, checked, read, deleted.

A thread is in one shard at a time. When it enters another one, that is downloaded, and every shard that no thread is in
is deleted. So whoever reads tensors in the order of the shards has one of them on the disk, and while threads go from
one to the next two. A process that is killed leaves its shards to the next one that reads the same commit.
"""

import shutil
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from filelock import lock_descriptor
from numpy.typing import NDArray

from mxconv.arrays import U8
from mxconv.checkpoint.hub import fetch_files, file_hashes, list_repository
from mxconv.checkpoint.object_store import Store
from mxconv.checkpoint.ranged_file import RangedFile, StoreSnapshot, fetch_store_snapshot
from mxconv.checkpoint.regular_file import sha256_file
from mxconv.checkpoint.safetensors_header import TensorEntry
from mxconv.checkpoint.tensor import MappedFile, as_tensor
from mxconv.errors import CheckpointError
from mxconv.progress import Progress, silent

SMALL_BYTES = 1 << 20  # a tensor of fewer is read by its range while its shard is not here


class Spool:
    """The folder, in the cache of the Hub's client, of the shards of one repository at one commit.

    Raises:
        CheckpointError: another process reads the commit in this way, or the Hub gives no answer.
    """

    def __init__(self, repo_id: str, commit: str, names: Iterable[str]) -> None:
        from huggingface_hub import cached_assets_path

        self.repo_id, self.commit = repo_id, commit
        self.progress: Progress = silent  # told about every download
        self.sha256s = file_hashes(repo_id, names, commit)
        self.files: list[SpooledFile] = []
        self.folder = Path(cached_assets_path("mxconv", "sources", f"{repo_id.replace('/', '--')}--{commit}"))
        self._entered: dict[int, SpooledFile] = {}  # by thread
        self._changes = threading.Lock()
        self._lock_file = (self.folder / ".lock").open("a")
        if not lock_descriptor(self._lock_file.fileno(), blocking=False):
            self._lock_file.close()
            raise CheckpointError(
                f"{self.folder}: another process reads hf://{repo_id} shard by shard; one at a time is required. "
                f"Wait until it ends, or give {repo_id} without hf://, which is downloaded whole and kept."
            )

    def open_file(self, store: Store, name: str, path: Path) -> "SpooledFile":
        """The next shard, of which only the header is read."""
        file = SpooledFile(store, name, path)
        file.spool, file.rank, file.sha256 = self, len(self.files), self.sha256s.get(name)
        self.files.append(file)
        return file

    def enter(self, file: "SpooledFile") -> MappedFile:
        """The shard on the disk. Raises CheckpointError where it cannot be had, or is another than the Hub lists."""
        thread = threading.get_ident()
        if self._entered.get(thread) is not file or file.local is None:
            with self._changes:
                self._entered[thread] = file
                running = {each.ident for each in threading.enumerate()}
                self._entered = {key: value for key, value in self._entered.items() if key in running}
                for other in self.files:
                    if other not in self._entered.values():
                        other.leave()
                if file.local is None:
                    file.local = self._fetch(file)
        return file.local

    def _fetch(self, file: "SpooledFile") -> MappedFile:
        sizes = [other.num_bytes for other in self.files]

        def report(num_bytes: int) -> None:
            self.progress("download", sum(sizes[: file.rank]) + num_bytes, sum(sizes))

        path = fetch_files(self.repo_id, [file.name], self.commit, self.folder, report) / file.name
        found = sha256_file(path)
        if file.sha256 not in (None, found):
            path.unlink()
            raise CheckpointError(
                f"{file.label}: has the SHA-256 {found} as it was downloaded; {file.sha256} is required, as the Hub "
                "lists it. Run the same command again."
            )
        report(file.num_bytes)
        return MappedFile(path)

    def close(self) -> None:
        """Delete every shard that is here."""
        for file in self.files:
            file.leave()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock_file.close()


class SpooledFile(RangedFile):
    """A shard of a spool. A process that it is sent to reads it by ranges."""

    spool: Spool
    local: MappedFile | None = None

    def __reduce__(self) -> tuple[object, ...]:
        reopen, (_, *place) = cast(Any, super().__reduce__())
        return reopen, (RangedFile, *place)

    def _read(self, entry: TensorEntry, begin: int, end: int) -> NDArray[np.generic]:
        if self.local is None and entry.num_bytes < SMALL_BYTES:
            return as_tensor(super().window(entry.begin + begin, entry.begin + end), entry, self.label)
        return super()._read(entry, begin, end)

    def window(self, begin: int, end: int) -> U8:
        return self.spool.enter(self).window(begin, end)

    def release_rows(self, name: str, start: int, stop: int) -> None:
        if (local := self.local) is not None:
            local.release_rows(name, start, stop)

    def leave(self) -> None:
        """Delete the shard if it is here; views that are in use stay valid."""
        if (local := self.local) is not None:
            self.local = None
            local.close()
            with suppress(OSError):  # Windows deletes no file of which a view is in use: `close` tries again
                local.path.unlink()


def fetch_streamed_snapshot(repo_id: str, revision: str | None) -> tuple[StoreSnapshot, Spool]:
    """The small files of a repository on the Hub, and a spool for its weights.

    Raises:
        MxconvError: no such repository or revision, no answer, no safetensors, or another process reads it so.
    """
    commit = list_repository(repo_id, revision).commit
    found = fetch_store_snapshot(f"hf://{repo_id}@{commit}")
    with found.named_errors():
        return found, Spool(repo_id, commit, found.weights.shards)
