"""A conversion that writes nothing: every piece is compared with the package that is there, as it is encoded."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.package.manifest import FILE_NAME, FileRecord
from mxconv.package.package import inside
from mxconv.package.shard_files import ArrayPlaces, ComparedSink, array_places, different
from mxconv.package.shard_layout import ShardLayout
from mxconv.package.staging import EncodedTensor, PlacedFile, Sink, Written
from mxconv.progress import Progress
from mxconv.workers import Executor


class ComparedStaging:
    """A package that is compared, in place of one that grows; see `staging.Staging`."""

    is_resumed = False

    def __init__(self, package: Path, records: Sequence[FileRecord], manifest: bytes) -> None:
        """Compare with a package's folder, the files that its manifest lists, and the manifest's bytes."""
        self._folder = package.absolute()
        self._records = {record.path: record for record in records}
        self._manifest = manifest
        self._made: set[str] = set()
        self._places: Mapping[str, ArrayPlaces] = {}

    def prepare(self, layout: ShardLayout, workers: Executor) -> dict[str, EncodedTensor]:
        """Compare the headers of the shards."""
        for shard in layout.shards:
            path = self._path(shard.file_name)
            with open_file(path) as file:
                if file.read(len(shard.header)) != shard.header or check_regular_file(path) != shard.num_bytes:
                    raise different(path, "names, shapes or places of its arrays differ")
        self._places = array_places(layout)
        return {}

    def sinks(self, names: Sequence[str]) -> Iterator[tuple[Sink, list[str]]]:
        for name in names:
            yield ComparedSink(self._folder, self._places.get(name, {})), [name]

    def accept(self, written: Written) -> None:
        pass

    def note(self, encoded: EncodedTensor) -> None:
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
