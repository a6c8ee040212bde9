"""SHA-256 of several streams at once: a file and the tensor in it cost hardly more than one of them.

One stream keeps a core's SHA instructions busy for half of the time. Where the extension runs and the processor has
the instructions, streams take turns in them; elsewhere OpenSSL, through hashlib, hashes one after another.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from mxconv.arrays import U8
from mxconv.kernels.engine import choose_engine

with suppress(ImportError):  # where it is missing, `choose_engine` says so and hashlib hashes
    from mxconv.kernels import _native


class HashStream(Protocol):
    """Bytes on their way to a digest."""

    def hexdigest(self) -> str:
        """The SHA-256 of the bytes so far."""
        ...


class OpenSslStream:
    """One that hashlib hashes."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, piece: U8) -> None:
        """Hash (n,) bytes."""
        self._hash.update(piece.data)

    def hexdigest(self) -> str:
        """The SHA-256 of the bytes so far."""
        return self._hash.hexdigest()


def new_stream() -> HashStream:
    """A stream of no bytes yet."""
    if choose_engine(num_threads=1) is not None and _native.has_sha256():
        return _native.Sha256()
    return OpenSslStream()


def update(streams: Sequence[HashStream], pieces: Sequence[U8]) -> None:
    """Hash one contiguous piece of bytes into each stream, of which all are different."""
    together: list[HashStream] = []
    their_pieces: list[U8] = []
    for stream, piece in zip(streams, pieces, strict=True):
        if isinstance(stream, OpenSslStream):
            stream.update(piece)
        else:
            together.append(stream)
            their_pieces.append(piece)
    if together:
        _native.sha256_update(together, their_pieces)  # type: ignore[arg-type]  # there are only two kinds
