"""A safetensors file on an object store, read by ranges and never whole.

What is read are arrays of their own: nothing is mapped, nothing has to be released. Who goes through a file in steps
shorter than a block asks the store once a block: every thread keeps the one that it read last.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U8
from mxconv.checkpoint.header import TensorEntry, parse_header
from mxconv.checkpoint.mapped_file import as_tensor
from mxconv.checkpoint.store.store import ObjectLook, Store
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.errors import CheckpointError

BLOCK_BYTES = 8 << 20


class RangedFile:
    """One safetensors file, opened and checked."""

    def __init__(self, store: Store, name: str, path: Path) -> None:
        """Read the header.

        Args:
            store: the folder.
            name: of the file there.
            path: under which a copy of the folder would have it: by this the file is called in manifest and package.

        Raises:
            CheckpointError: it is not there, cannot be read, or its header is refused.
        """
        look = store.look(name)
        if look is None:
            raise CheckpointError(f"{store.path(name)}: no such object; an existing one is required. Upload it.")
        self.store, self.name, self.path, self.look = store, name, path, look
        self.num_bytes = look.num_bytes
        header = parse_header(
            self.url, look.num_bytes, lambda begin, length: store.read(name, begin, min(begin + length, self.num_bytes))
        )
        self.entries: Mapping[str, TensorEntry] = {entry.name: entry for entry in header.entries}
        self.metadata: Mapping[str, str] = header.metadata
        self._blocks = threading.local()
        _open[_key(self)] = self

    @property
    def url(self) -> str:
        """For messages."""
        return self.store.path(self.name)

    def __reduce__(self) -> tuple[object, ...]:
        """Sent to another process, it is opened there."""
        return _reopen, (self.store, self.name, self.path, self.look)

    def view(self, name: str) -> NDArray[np.generic]:
        """The whole tensor, read-only: all of it is read.

        Raises:
            CheckpointError: it cannot be read.
        """
        return self._read(self.entries[name], 0, self.entries[name].num_bytes)

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Rows [start, stop) of the first axis, read-only: nothing else is read.

        Raises:
            CheckpointError: they cannot be read.
        """
        entry = self.entries[name]
        row_bytes = entry.num_bytes // max(entry.shape[0], 1)
        return self._read(entry, start * row_bytes, stop * row_bytes)

    def window(self, begin: int, end: int) -> U8:
        """Bytes [begin, end) of the file, header included, read-only.

        Raises:
            CheckpointError: they cannot be read.
        """
        if begin == end or end - begin >= BLOCK_BYTES:
            return np.frombuffer(self.store.read(self.name, begin, end), np.uint8)
        first, last = begin // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        blocks = [self._block(number) for number in range(first, last + 1)]
        whole = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        window = whole[begin - first * BLOCK_BYTES : end - first * BLOCK_BYTES]
        window.flags.writeable = False
        return window

    def fetch(self, begin: int, end: int) -> None:
        """What a disk does beforehand, a store does not."""

    def release(self, rows: NDArray[np.generic]) -> None:
        """Nothing: an array goes with its last user."""

    def check_unchanged(self) -> None:
        """Raises CheckpointError where the object was changed since it was opened."""
        _check_look(self.store, self.name, self.look)

    def close(self) -> None:
        """Let the blocks go."""
        self._blocks = threading.local()

    def _read(self, entry: TensorEntry, begin: int, end: int) -> NDArray[np.generic]:
        return as_tensor(self.window(entry.begin + begin, entry.begin + end), entry, self.url)

    def _block(self, number: int) -> U8:
        """The last one of this thread, or a new one."""
        kept: tuple[int, U8] | None = getattr(self._blocks, "last", None)
        if kept is None or kept[0] != number:
            begin = number * BLOCK_BYTES
            content = self.store.read(self.name, begin, min(begin + BLOCK_BYTES, self.num_bytes))
            self._blocks.last = kept = number, np.frombuffer(content, np.uint8)
        return kept[1]


class RangedTensor(SourceTensor):
    """A tensor on an object store."""

    def __init__(self, name: str, file: RangedFile) -> None:
        super().__init__(name, file)
        self._ranged = file

    @property
    def path(self) -> str:
        """The URL of its file."""
        return self._ranged.url

    def rows(self, start: int, stop: int) -> NDArray[np.generic]:
        """Rows [start, stop) of the first axis; nothing else is read."""
        if not self.shape or not 0 <= start <= stop <= self.shape[0]:
            raise ValueError(f"tensor {self.name!r} of shape {self.shape} has no rows [{start}, {stop})")
        return self._ranged.rows(self.name, start, stop)

    def release(self, start: int = 0, stop: int | None = None) -> None:
        """Nothing: an array goes with its last user."""


_open: WeakValueDictionary[tuple[str, ObjectLook], RangedFile] = WeakValueDictionary()
_sent: dict[tuple[str, ObjectLook], RangedFile] = {}  # of this process, for as long as it lives: headers


def _key(file: RangedFile) -> tuple[str, ObjectLook]:
    return file.url, file.look


def _reopen(store: Store, name: str, path: Path, look: ObjectLook) -> RangedFile:
    """The file that was sent; every process reads its header once.

    Raises:
        CheckpointError: it is gone, or was changed.
    """
    key = store.path(name), look
    file = _open.get(key)
    if file is None:
        _check_look(store, name, look)
        file = RangedFile(store, name, path)
    _sent[key] = file
    return file


def _check_look(store: Store, name: str, look: ObjectLook) -> None:
    now = store.look(name)
    if now != look:
        found = "gone" if now is None else f"{now.num_bytes:,} bytes with tag {now.tag}"
        raise CheckpointError(
            f"{store.path(name)}: {found} now, and was {look.num_bytes:,} bytes with tag {look.tag} when it was "
            "opened; a checkpoint must stay as it is. Wait until it is complete and run again."
        )
