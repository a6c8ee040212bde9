"""Files that become part of a package on a store as they are: sent in parts, and hashed on the way."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.checkpoint.store.store import Store
from mxconv.errors import CheckpointError
from mxconv.package.manifest import FileRecord
from mxconv.package.marker import check_lasts
from mxconv.package.object_note import ObjectNote, note_object
from mxconv.package.staging import PlacedFile
from mxconv.workers import Advance

READ_BYTES = 1 << 22


@dataclass(frozen=True)
class FilePiece:
    """One file."""

    path: Path  # absolute
    name: str  # in the package
    num_bytes: int
    known: FileRecord | None  # what it was when it was converted
    note: ObjectNote | None  # of the object that is there

    @staticmethod
    def of(file: PlacedFile, known: FileRecord | None, note: ObjectNote | None) -> "FilePiece":
        """Raises CheckpointError where the file cannot be read."""
        path = file.source.absolute()
        return FilePiece(path, file.name, check_regular_file(path), known, note)


@dataclass(frozen=True)
class UploadFile:
    """A task: send a file, and say what it is."""

    target: Store
    work: Store

    def __call__(self, piece: FilePiece, advance: Advance) -> FileRecord:
        known, note = piece.known, piece.note
        if known is not None and note is not None and (note.sha256, note.num_bytes) == (known.sha256, known.num_bytes):
            advance(piece.num_bytes)
            return known
        digest, num_bytes = hashlib.sha256(), 0
        with self.target.writing(piece.name) as append, open_file(piece.path) as file:
            while content := file.read(READ_BYTES):
                digest.update(content)
                append(content)
                num_bytes += len(content)
                advance(len(content))
            record = FileRecord(path=piece.name, num_bytes=num_bytes, sha256=digest.hexdigest())
            if known is not None and record != known:
                raise CheckpointError(
                    f"{piece.path}: was changed while it was converted; files that stay as they are are required. "
                    "Run the same command again."
                )
            check_lasts(self.work, self.target.path(piece.name))
        if known is not None:
            note_object(self.target, self.work, piece.name, num_bytes, record.sha256)
        return record
