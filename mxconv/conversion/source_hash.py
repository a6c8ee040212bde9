"""The SHA-256 of every source file and of every tensor in it, in one pass beside the encoding."""

import hashlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from mxconv.checkpoint.hashing import FileHash
from mxconv.checkpoint.mapped_file import MappedFile
from mxconv.checkpoint.ranged_file import RangedFile
from mxconv.checkpoint.source import Checkpoint
from mxconv.conversion.preparation import relative_name
from mxconv.conversion.survey import Survey
from mxconv.package.manifest import FileRecord
from mxconv.package.staging import EncodedTensor, Staging, Written
from mxconv.progress import Progress
from mxconv.workers import Advance, ByteCounter, Executor, Stream, uncounted

WINDOW_BYTES = 1 << 22  # mapped at a time
PIECE_BYTES = 1 << 24
AHEAD_BYTES = 1 << 26  # what the disk is asked for beforehand


class SourceHashes:
    """The weight files and the index of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, workers: Executor, progress: Progress) -> None:
        """Hand the files to the workers, in order."""
        sizes = checkpoint.file_sizes
        paths = [*checkpoint.weight_files, *([checkpoint.index_file] if checkpoint.index_file else [])]
        self._names = [relative_name(path, checkpoint) for path in paths]
        advance = ByteCounter("hash source", sum(sizes.values()), progress)
        self._tensors: dict[str, str] = {}
        windowed = checkpoint.windowed_files
        self._covered = {name for file in windowed.values() for name in file.entries}
        self._hashes = [
            _WindowedHash(windowed[path], self._note, advance) if path in windowed else FileHash(path, advance)
            for path in paths
        ]
        self._listeners: list[Callable[[str], None]] = []
        for stream in self._hashes:
            workers.add_stream(stream)

    @property
    def records(self) -> list[FileRecord] | None:
        """Names, lengths and hashes; None until all files are hashed."""
        if not all(stream.is_finished for stream in self._hashes):
            return None
        return [
            FileRecord(path=name, num_bytes=stream.num_bytes, sha256=stream.hexdigest())
            for name, stream in zip(self._names, self._hashes, strict=True)
        ]

    def covers(self, survey: Survey) -> bool:
        """Whether a tensor is hashed here: not where what counts are other bytes than those in the file."""
        return survey.plan.name in self._covered and not survey.plan.is_cast

    def tensor(self, name: str) -> str | None:
        """The hash of a tensor's bytes in its file; None until they are hashed."""
        return self._tensors.get(name)

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call this with the name of each tensor that is hashed from now on, in the thread that hashes."""
        self._listeners.append(listener)

    def _note(self, name: str, sha256: str) -> None:
        self._tensors[name] = sha256
        for listener in self._listeners:
            listener(name)


class _Part(NamedTuple):
    """A tensor's place in its file."""

    begin: int
    end: int
    name: str


class _WindowedHash(Stream):
    """A safetensors file, hashed in pieces."""

    def __init__(self, file: MappedFile | RangedFile, note: Callable[[str, str], object], progress: Advance) -> None:
        self._file, self._note, self._progress = file, note, progress
        self._whole = hashlib.sha256()
        self._hexdigest: str | None = None  # of another process
        parts = sorted(_Part(entry.begin, entry.end, entry.name) for entry in file.entries.values())
        self._parts = parts[::-1]  # the next one last
        self._part: hashlib._Hash | None = None
        self._found: dict[str, str] = {}  # by tensor
        self.num_bytes = 0  # hashed so far
        self.is_finished = False

    def __reduce__(self) -> tuple[object, ...]:
        """A copy is of the same file, and keeps what it finds until it reports."""
        return _WindowedHash, (self._file, _nobody, uncounted)

    def advance(self) -> bool:
        """Hash 16 MB more; False at the end of the file."""
        end = min(self.num_bytes + PIECE_BYTES, self._file.num_bytes)
        self._file.fetch(end, end + AHEAD_BYTES)
        while self.num_bytes < end:
            begin = self.num_bytes
            window = self._file.window(begin, min(begin + WINDOW_BYTES, end))
            self._hash(begin, begin + len(window))
            self._file.release(window)
            self._progress(len(window))
        self.is_finished = self.num_bytes == self._file.num_bytes
        if self.is_finished:
            self._finish_parts()
        return not self.is_finished

    def hexdigest(self) -> str:
        return self._whole.hexdigest() if self._hexdigest is None else self._hexdigest

    def report(self) -> tuple[str, dict[str, str]]:
        """The hash of the file and those of its tensors."""
        return self.hexdigest(), self._found

    def accept(self, report: tuple[str, dict[str, str]]) -> None:
        """Take what a copy reports."""
        self._progress(self._file.num_bytes - self.num_bytes)
        self.num_bytes, self.is_finished = self._file.num_bytes, True
        self._hexdigest, tensors = report
        for name, sha256 in tensors.items():
            self._note(name, sha256)

    def _hash(self, begin: int, end: int) -> None:
        """Hash bytes up to `end`: each into the file, and into the tensor that it belongs to."""
        while self.num_bytes < end:
            self._finish_parts()
            stop, part = end, None
            if self._parts and self._parts[-1].begin > self.num_bytes:  # the header
                stop = min(end, self._parts[-1].begin)
            elif self._parts:
                stop = min(end, self._parts[-1].end)
                part = self._part = self._part or hashlib.sha256()
            piece = self._file.window(self.num_bytes, stop).data
            self._whole.update(piece)
            if part is not None:
                part.update(piece)
            self.num_bytes = stop

    def _finish_parts(self) -> None:
        """Note the tensors that end here, empty ones included."""
        while self._parts and self._parts[-1].end <= self.num_bytes:
            part = self._parts.pop()
            stream, self._part = self._part or hashlib.sha256(), None
            sha256 = self._found[part.name] = stream.hexdigest()
            self._note(part.name, sha256)


def _nobody(_: str, __: str) -> None:
    """Ignore a tensor's hash."""


class FinishedTensors:
    """Tensors that are written; in the journal as soon as they are hashed, too."""

    def __init__(self, staging: Staging, hashes: SourceHashes, earlier: Iterable[EncodedTensor]) -> None:
        """Begin with what an earlier run finished."""
        self._staging, self._hashes = staging, hashes
        self._lock = threading.Lock()
        self._waiting: dict[str, EncodedTensor] = {}
        self._done = {encoded.name: encoded for encoded in earlier}
        staging.accept(Written(list(self._done.values())))
        hashes.listen(self._note_if_hashed)

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def add(self, written: Written) -> None:
        """Some tensors are written."""
        self._staging.accept(written)
        with self._lock:
            self._waiting |= {encoded.name: encoded for encoded in written.tensors}
        for encoded in written.tensors:
            self._note_if_hashed(encoded.name)

    def all(self) -> dict[str, EncodedTensor]:
        """By name; the streams have finished."""
        assert not self._waiting
        return self._done

    def _note_if_hashed(self, name: str) -> None:
        with self._lock:
            encoded = self._waiting.get(name)
            sha256 = encoded.sha256 or self._hashes.tensor(name) if encoded else None
            if encoded is None or sha256 is None:
                return
            del self._waiting[name]
            self._done[name] = replace(encoded, sha256=sha256)
        self._staging.note(self._done[name])
