"""The arrays of one tensor as one object of a store, until they are taken into their shards.

    chunks   of arrays: those of each in ascending order, those of different ones mixed
    footer   JSON: the tensor's name and SHA-256, and of each array the CRC-32 and its chunks [begin, num_bytes]
    length   of the footer: 8 bytes, little endian
    magic    8 bytes

An object is seen once all of it is there, so a spool that exists is a finished tensor: the journal of a conversion
into a store is the list of its spools. What one says is checked before it is believed.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mxconv.checkpoint.store.store import Store
from mxconv.package.marker import writing_own
from mxconv.package.staging import EncodedTensor, Write
from mxconv.workers import Advance

CHUNK_BYTES = 4 << 20  # of an array that wait in memory
TAIL_BYTES = 1 << 16  # read at first: a footer is shorter, mostly
MAGIC = b"mxspool1"
END_BYTES = 8 + len(MAGIC)
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Chunk(NamedTuple):
    """A piece of an array."""

    begin: int  # in the object
    num_bytes: int


class Spool(NamedTuple):
    """What a footer says."""

    encoded: EncodedTensor
    chunks: Mapping[str, list[Chunk]]  # by array


@dataclass(frozen=True)
class SpoolSink:
    """Where the arrays of one tensor go: see `staging.TensorSink`."""

    store: Store
    name: str  # of the object
    tensor: str
    arrays: Mapping[str, int]  # bytes of each, in the order of their shards; none of a tensor that is not stored

    @property
    def needs_sha256(self) -> bool:
        """A spool says of which weights it is."""
        return bool(self.arrays)

    def fill(self, encode: Callable[[Write], EncodedTensor]) -> EncodedTensor:
        """Have the arrays written."""
        if not self.arrays:
            return encode(_nowhere)
        with writing_own(self.store, self.name) as append:
            writer = _Writer(append)
            encoded = encode(writer.write)
            writer.finish(encoded, self.arrays)
        return encoded

    def read(self) -> Spool | None:
        """What the object's footer says; None where there is no such object, or not one of this tensor."""
        look = self.store.look(self.name)
        return None if look is None else self.read_looked(look.num_bytes)

    def read_looked(self, num_bytes: int) -> Spool | None:
        """The same for an object of so many bytes."""
        if num_bytes < END_BYTES:
            return None
        tail = self.store.read(self.name, max(0, num_bytes - TAIL_BYTES), num_bytes)
        length = int.from_bytes(tail[-END_BYTES:-8], "little")
        end = num_bytes - END_BYTES
        if tail[-8:] != MAGIC or length > end:
            return None
        if length > len(tail) - END_BYTES:
            tail = self.store.read(self.name, end - length, num_bytes)
        return self._parse(tail[len(tail) - END_BYTES - length : len(tail) - END_BYTES], end - length)

    def _parse(self, footer: bytes, end: int) -> Spool | None:
        try:
            found = json.loads(footer)
            sha256, arrays = found["sha256"], found["arrays"]
            chunks = {name: [Chunk(*map(_number, pair)) for pair in array["chunks"]] for name, array in arrays.items()}
            checksums = {name: _number(array["crc32"]) for name, array in arrays.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        fits = all(chunk.begin + chunk.num_bytes <= end for array in chunks.values() for chunk in array)
        lengths = {name: sum(chunk.num_bytes for chunk in array) for name, array in chunks.items()}
        is_ours = found.get("tensor") == self.tensor and isinstance(sha256, str) and SHA256.fullmatch(sha256)
        if not (fits and is_ours and lengths == dict(self.arrays)):
            return None
        return Spool(EncodedTensor(self.tensor, sha256, checksums), chunks)


def find_finished(piece: tuple[SpoolSink, int], _: Advance) -> EncodedTensor | None:
    """A task: the tensor that an object of so many bytes holds."""
    sink, num_bytes = piece
    spool = sink.read_looked(num_bytes)
    return None if spool is None else spool.encoded


class _Writer:
    """Collects what comes of each array, and appends it to the object some megabytes at a time."""

    def __init__(self, append: Callable[[Any], object]) -> None:
        self._append = append
        self._waiting: defaultdict[str, bytearray] = defaultdict(bytearray)
        self._chunks: defaultdict[str, list[Chunk]] = defaultdict(list)
        self._num_bytes = 0

    def write(self, name: str, _: int, piece: NDArray[np.generic]) -> None:
        """See `Write`: pieces adjoin."""
        waiting = self._waiting[name]
        waiting += piece.reshape(-1).view(np.uint8).data
        if len(waiting) >= CHUNK_BYTES:
            self._flush(name)

    def finish(self, encoded: EncodedTensor, arrays: Mapping[str, int]) -> None:
        """Append what is left, in the shards' order, so that whoever reads it there reads on, and the footer."""
        for name in arrays:
            self._flush(name)
        said = {name: {"crc32": encoded.arrays.get(name, 0), "chunks": self._chunks[name]} for name in arrays}
        footer = json.dumps({"tensor": encoded.name, "sha256": encoded.sha256, "arrays": said}).encode()
        self._append(footer + len(footer).to_bytes(8, "little") + MAGIC)

    def _flush(self, name: str) -> None:
        if waiting := self._waiting.pop(name, None):
            self._chunks[name].append(Chunk(self._num_bytes, len(waiting)))
            self._num_bytes += len(waiting)
            self._append(waiting)


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _nowhere(_: str, __: int, ___: NDArray[np.generic]) -> None:
    """Takes what is not stored."""
    raise AssertionError("arrays without a place")
