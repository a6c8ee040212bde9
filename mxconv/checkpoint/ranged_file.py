"""A checkpoint on an object store: small files are fetched into a temporary folder, weights are read by ranges.

What is read are arrays of their own: nothing is mapped, nothing has to be released. A thread that goes through a file
in steps shorter than a block sends one request a block: every thread keeps the block that it read last.
"""

import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U8
from mxconv.checkpoint.folder import Weights, choose_weights, small_files
from mxconv.checkpoint.object_store import Store
from mxconv.checkpoint.regular_file import MAX_JSON_BYTES
from mxconv.checkpoint.safetensors_header import TensorEntry, parse_header
from mxconv.checkpoint.tensor import WeightFile, as_tensor
from mxconv.errors import CheckpointError

BLOCK_BYTES = 8 << 20


class RangedFile(WeightFile):
    """One safetensors file of a store, opened and checked. Every method raises CheckpointError where it cannot be read.

    Args:
        store: the folder.
        name: of the file there.
        path: under which a copy of the folder would have it: by this the file is called in manifest and package.
    """

    sha256: str | None = None  # where it is known without reading the file

    def __init__(self, store: Store, name: str, path: Path) -> None:
        look = store.look(name)
        if look is None:
            raise CheckpointError(f"{store.path(name)}: no such object; an existing one is required. Upload it.")
        self.store, self.name, self.path, self.look = store, name, path, look
        self.num_bytes = num_bytes = look.num_bytes
        header = parse_header(
            self.label, num_bytes, lambda begin, length: store.read(name, begin, min(begin + length, num_bytes))
        )
        self.entries: Mapping[str, TensorEntry] = {entry.name: entry for entry in header.entries}
        self._blocks = threading.local()
        self.remember()

    @property
    def label(self) -> str:
        return self.store.path(self.name)

    def view(self, name: str) -> NDArray[np.generic]:
        return self._read(self.entries[name], 0, self.entries[name].num_bytes)

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Rows [start, stop) of the first axis, read-only: nothing else is read."""
        entry = self.entries[name]
        row_bytes = entry.num_bytes // max(entry.shape[0], 1)
        return self._read(entry, start * row_bytes, stop * row_bytes)

    def _read(self, entry: TensorEntry, begin: int, end: int) -> NDArray[np.generic]:
        return as_tensor(self.window(entry.begin + begin, entry.begin + end), entry, self.label)

    def window(self, begin: int, end: int) -> U8:
        """Bytes [begin, end) of the file, header included, read-only."""
        if begin == end or end - begin >= BLOCK_BYTES:
            return np.frombuffer(self.store.read(self.name, begin, end), np.uint8)
        first, last = begin // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        blocks = [self._block(number) for number in range(first, last + 1)]
        whole = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        window = whole[begin - first * BLOCK_BYTES : end - first * BLOCK_BYTES]
        window.flags.writeable = False
        return window

    def _block(self, number: int) -> U8:
        """The last block of this thread, or a new one."""
        kept: tuple[int, U8] | None = getattr(self._blocks, "last", None)
        if kept is None or kept[0] != number:
            begin = number * BLOCK_BYTES
            content = self.store.read(self.name, begin, min(begin + BLOCK_BYTES, self.num_bytes))
            self._blocks.last = kept = number, np.frombuffer(content, np.uint8)
        return kept[1]

    def close(self) -> None:
        """Let the blocks go."""
        self._blocks = threading.local()

    def _place(self) -> tuple[Store, str, Path]:
        return self.store, self.name, self.path

    @staticmethod
    def check_place(place: tuple[Any, ...], look: Any) -> None:
        store, name, _ = place
        now = store.look(name)
        if now != look:
            found = "gone" if now is None else f"{now.num_bytes:,} bytes with tag {now.tag}"
            raise CheckpointError(
                f"{store.path(name)}: {found} now, and was {look.num_bytes:,} bytes with tag {look.tag} when it was "
                "opened; a checkpoint must stay as it is. Wait until it is complete and run again."
            )


@dataclass(frozen=True)
class StoreSnapshot:
    """A checkpoint on a store: its small files here, its weights there."""

    store: Store
    folder: "tempfile.TemporaryDirectory[str]"  # of the small files; it goes with `folder.cleanup()`
    weights: Weights

    @property
    def root(self) -> Path:
        return Path(self.folder.name)

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Have errors in the block name the URLs of files; after an error the folder is deleted."""
        try:
            yield
        except BaseException as error:
            self.folder.cleanup()
            if isinstance(error, CheckpointError):
                raise CheckpointError(str(error).replace(str(self.root), self.store.url)) from error
            raise


def fetch_store_snapshot(url: str) -> StoreSnapshot:
    """Get what says which files are the weights, and what goes along with them, of a folder in the Hugging Face layout.

    Raises:
        MxconvError: no such folder, nobody answers, or it holds no safetensors.
    """
    store = Store(url)
    if store.url.lower().endswith((".safetensors", ".gguf", ".bin")):
        raise CheckpointError(f"{url}: a file; the folder that holds the model is required on an object store.")
    looks = store.looks()
    if not looks:
        raise CheckpointError(
            f"{url}: no such folder, or an empty one; one with a model is required. Check the address."
        )
    top = [name for name in looks if "/" not in name]
    found = StoreSnapshot(store, tempfile.TemporaryDirectory(prefix="mxconv-"), Weights(()))
    with found.named_errors():
        for name in small_files(looks):
            if looks[name].num_bytes > MAX_JSON_BYTES:
                raise CheckpointError(
                    f"{store.path(name)}: {looks[name].num_bytes:,} bytes long; at most {MAX_JSON_BYTES:,} of a file "
                    "beside the weights are read. Check that it is the file its name says."
                )
            (found.root / name).parent.mkdir(exist_ok=True)
            (found.root / name).write_bytes(store.read_all(name))
        weights = choose_weights(found.root, top, url)
        if weights.is_legacy:
            raise CheckpointError(
                f"{url}: holds .bin files alone; safetensors are required on an object store. Download it, and "
                "convert the folder."
            )
        if missing := sorted({*weights.shards} - {*looks}):
            raise CheckpointError(
                f"{store.path(weights.index or '')}: names shard {missing[0]!r}, which is not there; every shard is "
                "required. Upload the missing file."
            )
    return replace(found, weights=weights)
