"""A package that grows on an object store. Nothing is written to a disk, and the workers share no folder.

A tensor becomes an object of its own (`spool.py`), whichever worker has it. Streams take these into the shards, which
are the package's (`shard_upload.py`). The manifest is written when everything else is there, and then what the
conversion wrote for itself is deleted. `store_target.py` says where everything lies.

There is no lock: two commands of one conversion write the same bytes to the same places.
"""

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from mxconv.checkpoint.store.store import Store
from mxconv.errors import PackageError
from mxconv.package.file_upload import FilePiece, UploadFile
from mxconv.package.layout import Layout
from mxconv.package.manifest import FILE_NAME, FileRecord
from mxconv.package.marker import MARKER
from mxconv.package.object_note import FOLDER as NOTES
from mxconv.package.object_note import ObjectNote, ReadNote
from mxconv.package.shard_upload import ShardUpload
from mxconv.package.spool import SpoolSink, find_finished
from mxconv.package.staging import EncodedTensor, PlacedFile
from mxconv.package.store_target import delete_partial, partial_looks, partial_of
from mxconv.progress import Progress
from mxconv.workers import ByteCounter, Executor


class StoreStaging:
    """The growing package of one conversion: see `staging.Staging`."""

    def __init__(self, target: Store, fingerprint: str) -> None:
        """Begin, or go on; what another conversion left is deleted.

        Args:
            target: the package's folder; `check_store` allows it.
            fingerprint: of the options and the source files' names.

        Raises:
            PackageError: something else is at the partial folder, or the store does not let us write.
        """
        self.target = Store(target.url, PackageError)
        self._partial = partial_of(target)
        self._work = Store(self._partial.path(fingerprint), PackageError)
        looks = partial_looks(self._partial)
        prefix = f"{fingerprint}/"
        self._left = {name.removeprefix(prefix): look for name, look in looks.items() if name.startswith(prefix)}
        self.is_resumed = MARKER in self._left
        if not self.is_resumed:
            if looks:
                self._delete_all()
            self._left = {}
            self._work.write(MARKER, b"mxconv\n")
        self._sinks: dict[str, SpoolSink] = {}  # by tensor
        self._shards: list[ShardUpload] = []
        self._shards_of: defaultdict[str, list[ShardUpload]] = defaultdict(list)  # by tensor
        self._notes: dict[str, ObjectNote] = {}  # of objects that are there
        self._records: dict[str, FileRecord] = {}

    def prepare(self, layout: Layout, workers: Executor) -> dict[str, EncodedTensor]:
        """Begin the shards, see `Staging.prepare`."""
        self._find_notes(workers)
        self._sinks = _sinks(layout, self._work)
        sink_of = {array: sink for sink in self._sinks.values() for array in sink.arrays}
        for shard in layout.shards:
            sinks = {array: sink_of[array] for array in shard.offsets}
            note = self._notes.get(shard.file_name)
            self._shards.append(ShardUpload(shard, sinks, (self.target, self._work), note))
            for tensor in {sink.tensor for sink in sinks.values()}:
                self._shards_of[tensor].append(self._shards[-1])
            workers.add_stream(self._shards[-1])
        written = [sink for sink in self._sinks.values() if sink.name in self._left]
        pieces = [(sink, self._left[sink.name].num_bytes) for sink in written]
        finished = workers.map(find_finished, pieces)
        return {encoded.name: encoded for encoded in finished if encoded is not None}

    def sink(self, name: str) -> SpoolSink:
        """Where the arrays of a tensor go."""
        return self._sinks.get(name) or SpoolSink(self._work, "", name, {})

    def accept(self, encoded: EncodedTensor) -> None:
        """Take the arrays of a tensor as written, now or by an earlier run."""
        names = list(self.sink(encoded.name).arrays)
        for shard in self._shards_of.get(encoded.name, ()):
            shard.complete(encoded, names)

    def note(self, encoded: EncodedTensor) -> None:
        """Its spool says it."""

    def write_file(self, name: str, content: bytes) -> None:
        """Write a whole small file."""
        self.target.write(name, content)
        sha256 = hashlib.sha256(content).hexdigest()
        self._records[name] = FileRecord(path=name, num_bytes=len(content), sha256=sha256)

    def place_files(
        self, files: Sequence[PlacedFile], known: Mapping[str, FileRecord], workers: Executor, progress: Progress
    ) -> None:
        """Send files. Companions are small, and may lie where no other machine sees them: they go from here. Of the
        others, where the hash is known, those that are there already are not sent again.
        """
        pieces = [FilePiece.of(file, known.get(file.name), self._notes.get(file.name)) for file in files]
        advance = ByteCounter("copy", sum(piece.num_bytes for piece in pieces), progress)
        upload = UploadFile(self.target, self._work)
        small = [upload(piece, advance) for piece, file in zip(pieces, files, strict=True) if not file.link]
        large = [piece for piece, file in zip(pieces, files, strict=True) if file.link]
        for record in [*small, *workers.map(upload, large, advance)]:
            self._records[record.path] = record

    def records(self, known: Mapping[str, FileRecord], progress: Progress) -> list[FileRecord]:
        """Every file of the package, by name; all were hashed on their way."""
        for upload in self._shards:
            self._records[upload.name] = FileRecord(
                path=upload.name, num_bytes=upload.shard.num_bytes, sha256=upload.hexdigest()
            )
        return [self._records[name] for name in sorted(self._records, key=lambda name: name.split("/"))]

    def commit(self, manifest: bytes, force: bool) -> None:
        """Look at everything once more, write the manifest, and delete what was ours alone."""
        looks = self.target.looks()
        for name, record in self._records.items():
            look = looks.pop(name, None)
            if look is None or look.num_bytes != record.num_bytes:
                found = "nothing" if look is None else f"{look.num_bytes:,} bytes"
                raise PackageError(
                    f"{self.target.path(name)}: {found} of {record.num_bytes:,} bytes that were written; somebody else "
                    "changes the package. Run the same command again."
                )
        self.target.delete(looks)  # of an earlier run, whose companions were others
        self.target.write(FILE_NAME, manifest)
        delete_partial(self._partial)

    def discard(self) -> None:
        """Delete everything."""
        self.close()
        self._delete_all()

    def close(self) -> None:
        """Have the store forget what is on its way; what is there stays for a later run."""
        with contextlib.suppress(PackageError):  # it will notice itself, later
            for upload in self._shards:
                upload.close()

    def _find_notes(self, workers: Executor) -> None:
        """Of objects that are still what they were."""
        names = [name.removeprefix(f"{NOTES}/") for name in self._left if name.startswith(f"{NOTES}/")]
        if names:
            looks = self.target.looks()
            notes = zip(names, workers.map(ReadNote(self._work), names), strict=True)
            self._notes = {name: note for name, note in notes if note is not None and note.is_of(looks.get(name))}

    def _delete_all(self) -> None:
        """The package's objects first: while a marker is there they are known as ours."""
        self.target.delete(self.target.looks())
        delete_partial(self._partial)


def _sinks(layout: Layout, work: Store) -> dict[str, SpoolSink]:
    """An object for each tensor, numbered as they are laid out."""
    order = {name: number for number, name in enumerate(layout.places)}
    sinks = {}
    for number, (tensor, arrays) in enumerate(layout.arrays.items()):
        ordered = sorted(arrays, key=lambda array: order[array.name])
        lengths = {array.name: array.num_bytes for array in ordered}
        sinks[tensor] = SpoolSink(work, f"tensors/{number:06}", tensor, lengths)
    return sinks
