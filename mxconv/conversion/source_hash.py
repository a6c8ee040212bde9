"""The SHA-256 of every source file, computed while tensors are encoded."""

from mxconv.checkpoint.hashing import FileHash
from mxconv.checkpoint.manifest import FileRecord
from mxconv.checkpoint.source import Checkpoint
from mxconv.conversion.names import relative_name
from mxconv.conversion.staging import fingerprint
from mxconv.conversion.work import ByteCounter, Workers
from mxconv.progress import Progress


class SourceHashes:
    """The weight files and the index of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, workers: Workers, progress: Progress) -> None:
        """Hand the files to the workers, in order."""
        paths = [*checkpoint.weight_files, *([checkpoint.index_file] if checkpoint.index_file else [])]
        self._names = [relative_name(path, checkpoint) for path in paths]
        advance = ByteCounter("hash source", sum(path.stat().st_size for path in paths), progress)
        self._hashes = [FileHash(path, advance) for path in paths]
        self._digest: str | None = None
        for stream in self._hashes:
            workers.add_stream(stream)

    @property
    def digest(self) -> str | None:
        """One hash for all; None until all files are hashed."""
        if self._digest is None and (records := self.records) is not None:
            self._digest = fingerprint([record.model_dump() for record in records])
        return self._digest

    @property
    def records(self) -> list[FileRecord] | None:
        """Names, lengths and hashes; None until all files are hashed."""
        if not all(stream.is_finished for stream in self._hashes):
            return None
        return [
            FileRecord(path=name, num_bytes=stream.num_bytes, sha256=stream.hexdigest())
            for name, stream in zip(self._names, self._hashes, strict=True)
        ]
