"""Where a package grows until it is whole: one interface, for a folder (`folder_staging.py`) and for an object store
(`store_staging.py`). Tensors are finished in any order, by any process; the next run finds again what was finished.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mxconv.package.layout import Layout
from mxconv.package.manifest import FileRecord
from mxconv.progress import Progress
from mxconv.workers import Executor

Write = Callable[[str, int, NDArray[np.generic]], None]
"""Takes an array's name, the byte offset inside it, and what belongs there."""


@dataclass(frozen=True)
class EncodedTensor:
    """What was written for a tensor."""

    name: str
    sha256: str | None  # of the 16-bit tensor, row-major; None where somebody else hashes it
    arrays: dict[str, int]  # array name to the CRC-32 of its bytes


class TensorSink(Protocol):
    """Where the arrays of one tensor go; it can be sent to another process."""

    @property
    def needs_sha256(self) -> bool:
        """Whether the tensor has to be hashed where it is encoded."""
        ...

    def fill(self, encode: Callable[[Write], EncodedTensor], /) -> EncodedTensor:
        """Have the arrays written.

        Args:
            encode: writes all of them, and returns what they are.
        """
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

    def prepare(self, layout: Layout, workers: Executor) -> dict[str, EncodedTensor]:
        """Lay out the shards.

        Args:
            layout: what will be written.
            workers: to whom the streams of the shards are handed.

        Returns:
            The tensors that an earlier run finished, their bytes checked. Whether the source still holds the same
            weights is for the caller to find out.
        """
        ...

    def sink(self, name: str) -> TensorSink:
        """Where the arrays of a tensor go."""
        ...

    def accept(self, encoded: EncodedTensor) -> None:
        """Take the arrays of a tensor as written, now or by an earlier run."""
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
        """Put files into the package as they are.

        Args:
            files: which.
            known: files whose hash is known, by their names in the package.
            workers: who copies.
            progress: told about bytes.
        """
        ...

    def records(self, known: Mapping[str, FileRecord], progress: Progress) -> list[FileRecord]:
        """Every file of the package, with its hash, by name; the workers have finished their streams.

        Args:
            known: files whose hash is known.
            progress: told about bytes.
        """
        ...

    def commit(self, manifest: bytes, force: bool) -> None:
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
