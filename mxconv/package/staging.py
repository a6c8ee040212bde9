"""The interface of a growing package: a folder (`folder_staging.py`) or an object store (`store_staging.py`).

Tensors are encoded in any order, by any process. After a kill the next run finds the shards that were whole.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from mxconv.package.growing_shard import Encode, FinishedShard, Written
from mxconv.package.manifest import FileRecord
from mxconv.package.shard_layout import ShardLayout
from mxconv.progress import Progress
from mxconv.workers import Executor

ArrayNames = Mapping[str, Sequence[str]]
"""The names of the arrays of tensors, by the tensors' names."""


class Sink(Protocol):
    """Takes the arrays of some tensors; it can be sent to another process."""

    def take(self, encode: Encode, /) -> Written:
        """Have the arrays of some tensors written."""
        ...


class PlacedFile(NamedTuple):
    """A file that becomes part of the package as it is."""

    name: str  # in the package
    source: Path
    link: bool  # where that is possible


class Staging(Protocol):
    """The growing package of one conversion."""

    def finished(self, layout: ShardLayout, workers: Executor) -> list[FinishedShard]:
        """The shards that an earlier run of the same conversion finished, their bytes checked; whether the source still
        holds the same weights is for the caller to find out."""
        ...

    def begin(self, layout: ShardLayout, finished: Sequence[FinishedShard]) -> None:
        """Lay out the shards but those that an earlier run finished."""
        ...

    def sinks(self) -> Iterator[tuple[Sink, ArrayNames]]:
        """Where the arrays go that are still to be written."""
        ...

    def accept(self, written: Written) -> None:
        """Take arrays as written; the next run need not do a shard again that is whole now."""
        ...

    def write_file(self, name: str, content: bytes) -> None:
        """Write a whole small file."""
        ...

    def place_files(
        self, files: Sequence[PlacedFile], known: Mapping[str, FileRecord], workers: Executor, progress: Progress
    ) -> None:
        """Put files into the package as they are; `known` are those whose hash is known, by their names in it."""
        ...

    def records(self, known: Mapping[str, FileRecord], progress: Progress) -> list[FileRecord]:
        """Every file of the package, with its hash, by name."""
        ...

    def commit(self, manifest: bytes) -> None:
        """Write the manifest, and have the package seen."""
        ...

    def discard(self) -> None:
        """Delete everything."""
        ...

    def close(self) -> None:
        """End; what was written stays for a later run."""
        ...


def fingerprint(*parts: object) -> str:
    """SHA-256 over the JSON of everything that decides the bytes of a package."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
