"""The interface of a growing package: a folder (`folder_staging.py`) or an object store (`store_staging.py`).

Tensors are finished in any order, by any process. After a kill the next run finds what was finished.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mxconv.package.manifest import FileRecord
from mxconv.package.shard_layout import ShardLayout
from mxconv.progress import Progress
from mxconv.workers import Executor

Write = Callable[[str, int, NDArray[np.generic]], None]
"""Takes an array's name, the byte offset inside it, and what belongs there."""


@dataclass(frozen=True)
class EncodedTensor:
    """The hash of a tensor, and the checksums of the arrays written for it."""

    name: str
    sha256: str | None  # of the 16-bit tensor, row-major; None where somebody else hashes it
    arrays: dict[str, int]  # array name to the CRC-32 of its bytes


class Written(NamedTuple):
    """The tensors whose arrays a sink has written."""

    tensors: list[EncodedTensor]
    upload: FileRecord | None = None  # the shard, where it is on a store by now


class Sink(Protocol):
    """Takes the arrays of some tensors; it can be sent to another process."""

    def arrays(self, tensor: str, /) -> Collection[str]:
        """Names of the arrays of a tensor that go here."""
        ...

    def writing(self) -> AbstractContextManager[Write]:
        """A function that writes pieces of the arrays, until the end of the block."""
        ...

    def finish(self, tensors: list[EncodedTensor], /) -> Written:
        """Take all arrays as written; called once, inside the block."""
        ...


class PlacedFile(NamedTuple):
    """A file that becomes part of the package as it is."""

    name: str  # in the package
    source: Path
    link: bool  # where that is possible


class Staging(Protocol):
    """The growing package of one conversion."""

    is_resumed: bool
    """Whether an earlier run of the same conversion left something."""

    def prepare(self, layout: ShardLayout, workers: Executor) -> dict[str, EncodedTensor]:
        """Lay out the shards, and hand their streams to the workers.

        Returns:
            The tensors that an earlier run finished, their bytes checked. Whether the source still holds the same
            weights is for the caller to find out.
        """
        ...

    def sinks(self, names: Sequence[str]) -> Iterable[tuple[Sink, Sequence[str]]]:
        """Where the arrays of these tensors go, each with the tensors to encode: at least those with these names."""
        ...

    def accept(self, written: Written) -> None:
        """Take arrays as written, now or by an earlier run."""
        ...

    def note(self, encoded: EncodedTensor) -> None:
        """A tensor is written and hashed: the next run need not do it."""
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
        """Every file of the package, with its hash, by name; the workers have finished their streams."""
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
