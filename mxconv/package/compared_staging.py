"""A conversion that writes nothing: every piece is compared with the package that is there, as it is encoded."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.errors import PackageError
from mxconv.package.growing_shard import ArrayPlace, Encode, FinishedShard, Written
from mxconv.package.manifest import FILE_NAME, FileRecord
from mxconv.package.package import inside
from mxconv.package.shard_layout import ShardLayout
from mxconv.package.staging import ArrayNames, PlacedFile, Sink
from mxconv.progress import Progress
from mxconv.workers import Executor


class ComparedStaging:
    """A package that is compared, in place of one that grows; see `staging.Staging`."""

    def __init__(self, package: Path, records: Sequence[FileRecord], manifest: bytes) -> None:
        """Compare with a package's folder, the files that its manifest lists, and the manifest's bytes."""
        self._folder = package.absolute()
        self._records = {record.path: record for record in records}
        self._manifest = manifest
        self._made: set[str] = set()
        self._layout = ShardLayout((), {}, {})

    def finished(self, layout: ShardLayout, workers: Executor) -> list[FinishedShard]:
        """None: all are compared."""
        return []

    def begin(self, layout: ShardLayout, finished: Sequence[FinishedShard]) -> None:
        """Compare the headers of the shards."""
        for shard in layout.shards:
            path = self._path(shard.file_name)
            with open_file(path) as file:
                if file.read(len(shard.header)) != shard.header or check_regular_file(path) != shard.num_bytes:
                    raise different(path, "names, shapes or places of its arrays differ")
        self._layout = layout

    def sinks(self) -> Iterator[tuple[Sink, ArrayNames]]:
        places = {name: ArrayPlace(shard.file_name, begin) for name, (shard, begin) in self._layout.places.items()}
        for tensor, arrays in self._layout.arrays.items():
            if arrays:
                names = [array.name for array in arrays]
                yield ComparedSink(self._folder, {name: places[name] for name in names}), {tensor: names}

    def accept(self, written: Written) -> None:
        pass

    def write_file(self, name: str, content: bytes) -> None:
        path = self._path(name)
        with open_file(path) as file:
            if file.read(len(content) + 1) != content:
                raise different(path, "its content differs")

    def place_files(
        self, files: Sequence[PlacedFile], known: Mapping[str, FileRecord], workers: Executor, progress: Progress
    ) -> None:
        for file in files:
            path = self._path(file.name)
            record = known.get(file.name)
            sha256 = sha256_file(file.source) if record is None else record.sha256
            if sha256 != self._records[file.name].sha256:
                raise different(path, "its content differs")

    def records(self, known: Mapping[str, FileRecord], progress: Progress) -> list[FileRecord]:
        """Those of the package: every file was compared, or none of them is there twice."""
        if further := sorted(self._records.keys() - self._made):
            raise different(self._folder / further[0], "its source gives no such file")
        return sorted(self._records.values(), key=lambda record: record.path)

    def commit(self, manifest: bytes) -> None:
        if manifest != self._manifest:
            raise different(self._folder / FILE_NAME, "its content differs")

    def discard(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _path(self, name: str) -> Path:
        """The path of a file of the package, which is noted as made."""
        if name not in self._records:
            raise different(self._folder / name, f"is not in {FILE_NAME}, and its source gives it")
        self._made.add(name)
        return inside(self._folder, name)


@dataclass(frozen=True)
class ComparedSink:
    """Compares the arrays of one tensor, see `staging.Sink`."""

    folder: Path  # absolute
    places: Mapping[str, ArrayPlace]

    def take(self, encode: Encode) -> Written:
        """Have the arrays compared; raises PackageError for the first byte that differs."""
        with ExitStack() as stack:
            names = {place.file_name for place in self.places.values()}
            files = {name: stack.enter_context(open_file(self.folder / name)) for name in names}

            def compare(name: str, offset: int, piece: NDArray[np.generic]) -> None:
                place = self.places[name]
                content = piece.reshape(-1).view(np.uint8)
                files[place.file_name].seek(place.begin + offset)
                found = np.frombuffer(files[place.file_name].read(len(content)), np.uint8)
                if len(found) != len(content) or not np.array_equal(found, content):
                    raise different(self.folder / place.file_name, f"array {name} differs")

            return Written(encode(compare))


def different(path: Path, what: str) -> PackageError:
    """The error for a file that its source does not give."""
    return PackageError(
        f"{path}: {what}; the package is not what its source gives. Do not use it, or convert the source again."
    )
