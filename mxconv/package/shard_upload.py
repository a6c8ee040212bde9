"""A shard on its way into a store: a stream that follows the tensors that are complete, and reads their spools."""

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mxconv.checkpoint.store.store import Store
from mxconv.checkpoint.store.upload import Upload
from mxconv.errors import PackageError
from mxconv.package.layout import Shard
from mxconv.package.marker import check_lasts
from mxconv.package.object_note import ObjectNote, note_object
from mxconv.package.shard_files import Arrivals
from mxconv.package.spool import Chunk, Spool, SpoolSink
from mxconv.package.staging import EncodedTensor

READ_BYTES = 8 << 20  # at most in one request


class _Part(NamedTuple):
    """A chunk, where it comes in the shard."""

    sink: SpoolSink
    array: str
    chunk: Chunk
    is_last: bool  # of its array


class ShardUpload:
    """One shard, hashed and appended to its object in the order of its bytes; arrays may be completed in any order."""

    def __init__(
        self,
        shard: Shard,
        sinks: Mapping[str, SpoolSink],
        stores: tuple[Store, Store],
        note: ObjectNote | None = None,
        *,
        is_sent: bool = False,
    ) -> None:
        """Follow a shard.

        Args:
            shard: its layout.
            sinks: where each of its arrays is.
            stores: the package's folder, and that of the conversion's own objects.
            note: of the object that is there, whole, from an earlier run.
            is_sent: to another process, which may outlive the conversion.
        """
        self.shard, self._sinks, self._stores, self._note, self._is_sent = shard, sinks, stores, note, is_sent
        self._target, self._work = stores
        self._arrivals = Arrivals(shard)
        self._tensors: dict[str, str] = {}  # complete ones, and their SHA-256
        self._digest = hashlib.sha256()
        self._hexdigest: str | None = None
        self._position = 0
        self._upload: Upload | None = None
        self._spools: dict[str, Spool] = {}  # by tensor
        self._parts = self._in_order()
        self._next: _Part | None = None
        self._checksum = 0  # of the array that it is at

    def __reduce__(self) -> tuple[object, ...]:
        """A copy begins at the beginning, and is told what is ready."""
        note = self._note if self._is_there else None
        return _sent, (self.shard, dict(self._sinks), self._stores, note, self._tensors if note else {})

    @property
    def name(self) -> str:
        return self.shard.file_name

    @property
    def ready(self) -> int:
        """Bytes, from the beginning, whose arrays are complete."""
        return self._arrivals.num_bytes

    @ready.setter
    def ready(self, num_bytes: int) -> None:
        self._arrivals.num_bytes = num_bytes

    def complete(self, encoded: EncodedTensor, names: list[str]) -> None:
        """Note that the arrays of a tensor are written; others than the shard's do not matter."""
        assert encoded.sha256 is not None
        if any(name in self._sinks and self._sinks[name].arrays[name] for name in names):
            self._tensors[encoded.name] = encoded.sha256
        self._arrivals.complete(names)

    def is_ready(self) -> bool:
        """Whether there is something to send. Where the object may be there already, not before that is known."""
        if self._hexdigest is not None:
            return False
        return self.ready == self.shard.num_bytes if self._note else self._position < self.ready

    def advance(self) -> bool:
        """Send up to 8 MB that are ready; False once the object is there."""
        if self._is_there:
            assert self._note is not None
            self._position, self._hexdigest = self.shard.num_bytes, self._note.sha256
            return False
        self._upload = self._upload or Upload(self._target, self.name)
        piece = self._read() if self._position else self.shard.header
        self._digest.update(piece)
        self._upload.append(piece)
        self._position += len(piece)
        if self._position < self.shard.num_bytes:
            return True
        self._finish(self._upload)
        return False

    def hexdigest(self) -> str:
        """Of the whole shard."""
        assert self._hexdigest is not None
        return self._hexdigest

    def report(self) -> tuple[int, str | None]:
        """Bytes that are sent, and at the end the hash."""
        return self._position, self._hexdigest

    def accept(self, report: tuple[int, str | None]) -> None:
        """Take what a copy reports."""
        self._position, self._hexdigest = report

    def close(self) -> None:
        """Have the store forget what was sent of a shard that is not whole."""
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.abort()

    @property
    def _is_there(self) -> bool:
        """Whether the object of an earlier run has the bytes that it would get now."""
        return self._note is not None and self._note.tensors == self._tensors

    def _finish(self, upload: Upload) -> None:
        if self._is_sent:
            check_lasts(self._work, self._target.path(self.name))
        upload.finish()
        self._upload = None
        tensors = {name: spool.encoded.sha256 or "" for name, spool in self._spools.items()}
        sha256 = self._digest.hexdigest()
        note_object(self._target, self._work, self.name, self.shard.num_bytes, sha256, tensors)
        self._hexdigest = sha256

    def _in_order(self) -> Iterator[_Part]:
        """The chunks of the shard's arrays; a spool is opened when it is come to."""
        for name in sorted(self.shard.offsets, key=lambda name: self.shard.offsets[name]):
            sink = self._sinks[name]
            chunks = self._spool(sink).chunks[name] if sink.arrays[name] else []
            for number, chunk in enumerate(chunks, 1):
                yield _Part(sink, name, chunk, number == len(chunks))

    def _read(self) -> bytes:
        """The next chunk, and those behind it that lie behind it in its spool too, in one request."""
        parts: list[_Part] = []
        num_bytes = 0
        while self._position + num_bytes < self.ready:
            part, self._next = self._next or next(self._parts), None
            if parts and not _adjoins(parts, part, num_bytes):
                self._next = part
                break
            parts.append(part)
            num_bytes += part.chunk.num_bytes
        sink, begin = parts[0].sink, parts[0].chunk.begin
        content = sink.store.read(sink.name, begin, begin + num_bytes)
        for part in parts:
            self._check(part, content[part.chunk.begin - begin :][: part.chunk.num_bytes])
        return content

    def _spool(self, sink: SpoolSink) -> Spool:
        if sink.tensor not in self._spools:
            spool = sink.read()
            if spool is None:
                raise _damaged(sink, f"no spool of tensor {sink.tensor}")
            self._spools[sink.tensor] = spool
        return self._spools[sink.tensor]

    def _check(self, part: _Part, content: bytes) -> None:
        """That an array's bytes are those which were written."""
        self._checksum = zlib.crc32(content, self._checksum)
        if part.is_last:
            found, self._checksum = self._checksum, 0
            if found != self._spool(part.sink).encoded.arrays[part.array]:
                raise _damaged(part.sink, f"its bytes of {part.array} have the CRC-32 {found:08x}, and say another")


def _adjoins(parts: list[_Part], part: _Part, num_bytes: int) -> bool:
    """Whether a chunk can be read in one request with those before it."""
    first = parts[0]
    is_next = part.sink is first.sink and part.chunk.begin == first.chunk.begin + num_bytes
    return is_next and num_bytes + part.chunk.num_bytes <= READ_BYTES


def _damaged(sink: SpoolSink, found: str) -> PackageError:
    return PackageError(
        f"{sink.store.path(sink.name)}: {found}; what this conversion wrote is required. Delete this object, and run "
        "the same command again."
    )


def _sent(
    shard: Shard,
    sinks: Mapping[str, SpoolSink],
    stores: tuple[Store, Store],
    note: ObjectNote | None,
    tensors: dict[str, str],
) -> ShardUpload:
    """Of another process."""
    upload = ShardUpload(shard, sinks, stores, note, is_sent=True)
    upload._tensors = tensors
    return upload
