"""Opening a 16-bit checkpoint, wherever it is: a folder, a single file, the Hub or an object store.

GGUF files are opened by `mxconv.open_source`.

    with open_checkpoint("stories260K-bf16") as checkpoint:
        for tensor in checkpoint.tensors.values():
            for start in range(0, tensor.shape[0], 256):
                patterns = tensor.rows(start, min(start + 256, tensor.shape[0]))
                tensor.release()

Headers and indexes are checked in full when it is opened; weights are only mapped, or stay where they are.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Literal

from mxconv.checkpoint.folder import (
    MODEL_FILE,
    TEMPLATES_FOLDER,
    TOKENIZER_FILE,
    Weights,
    check_index,
    choose_weights,
    companions,
    resolve_shard,
)
from mxconv.checkpoint.object_store import is_store_url
from mxconv.checkpoint.ranged_file import BLOCK_BYTES, RangedFile, StoreSnapshot, fetch_store_snapshot
from mxconv.checkpoint.regular_file import check_regular_file, read_json_object, sha256_file
from mxconv.checkpoint.tensor import MappedFile, SourceTensor, WeightFile
from mxconv.errors import CheckpointError
from mxconv.progress import Progress
from mxconv.workers import Advance

if TYPE_CHECKING:
    from mxconv.checkpoint.spool import Spool

__all__ = ["Checkpoint", "SourceTensor", "open_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint. A context manager; closing it unmaps the files."""

    id: str  # as given: a path, a Hub id or a URL
    commit: str | None  # of the Hub repository
    root: Path  # the folder; of a single file, the one that it lies in
    weight_files: tuple[Path, ...]  # absolute, sorted
    companion_files: tuple[Path, ...]  # configuration, tokenizer, licence: absolute, sorted
    index_file: Path | None
    tensors: Mapping[str, SourceTensor]  # sorted by name
    config: dict[str, Any] | None  # config.json; None for a single file, unless that is GGUF
    container: Literal["safetensors", ".bin", ".pt", "GGUF"]
    _files: tuple[WeightFile, ...] = field(repr=False)
    # companions that are made: all of GGUF's, or the tokenizer.json of a tokenizer.model
    derive_files: Callable[[], dict[str, bytes]] = field(default=dict, repr=False)
    note: str | None = None  # what a conversion leaves out
    snapshot: StoreSnapshot | None = field(default=None, repr=False)  # of an object store
    spool: "Spool | None" = field(default=None, repr=False)  # of a model on the Hub whose shards are not kept

    @property
    def is_on_store(self) -> bool:
        """Whether its weights are on an object store: nothing is at the paths of the weight files."""
        return self.snapshot is not None

    @property
    def hashed_files(self) -> dict[Path, Path | RangedFile]:
        """The weight files and the index, by path, as `hash_file` takes them."""
        on_store = {file.path: file for file in self._files if isinstance(file, RangedFile)}
        paths = (*self.weight_files, *([self.index_file] if self.index_file else []))
        return {path: on_store.get(path, path) for path in paths}

    @property
    def file_sizes(self) -> dict[Path, int]:
        """Bytes of each weight file, and of the index."""
        sizes = {file.path: file.look.num_bytes for file in self._files}
        return sizes if self.index_file is None else sizes | {self.index_file: self.index_file.stat().st_size}

    @property
    def is_immutable(self) -> bool:
        """Whether its weights cannot be others the next time: they are read from the Hub, at a commit."""
        return self.spool is not None

    def show_downloads(self, progress: Progress) -> None:
        """Have the downloads of shards shown that are on this disk only while they are read."""
        if self.spool is not None:
            self.spool.progress = progress

    def check_unchanged(self) -> None:
        """Raises CheckpointError where a weight file was changed since it was opened."""
        for file in self._files:
            file.check_unchanged()

    def close(self) -> None:
        """Unmap the weights. Views that are still in use stay valid."""
        for file in self._files:
            file.close()
        if self.snapshot is not None:
            self.snapshot.folder.cleanup()
        if self.spool is not None:
            self.spool.close()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_checkpoint(source: str | Path, *, revision: str | None = None) -> Checkpoint:
    """Open a checkpoint and check its structure.

    Args:
        source: a folder, a .safetensors (or .bin) file, a Hub id `owner/name` or the address of its page,
            `hf://owner/name` for the same without keeping its shards, or the URL of a folder on an object store. A path
            that exists wins.
        revision: branch, tag or commit of a Hub repository; its default branch when None.

    Raises:
        CheckpointError: it cannot be found, reached or read, or it contradicts itself.
    """
    path, name = Path(source), str(source)
    if os.path.lexists(path):
        check_no_revision(source, revision)
        path = path.absolute()
        return (
            _open(name, None, path, choose_weights(path, _file_names(path), name))
            if path.is_dir()
            else _open_file(name, path)
        )
    from mxconv.checkpoint.hub import fetch_snapshot, is_hub_id, parse_address  # late: most checkpoints are folders

    name, revision = parse_address(name, revision)
    if not is_store_url(name):
        snapshot = fetch_snapshot(name, revision)
        return _open(name, snapshot.commit, snapshot.root, snapshot.weights)
    repo_id, _, branch = name.removeprefix("hf://").partition("@")
    if name.startswith("hf://") and "/" in repo_id and is_hub_id(repo_id):  # its shards are not kept
        from mxconv.checkpoint.spool import fetch_streamed_snapshot

        on_store, spool = fetch_streamed_snapshot(repo_id, revision or branch or None)
        with on_store.named_errors():
            return _open(repo_id, spool.commit, on_store.root, on_store.weights, snapshot=on_store, spool=spool)
    check_no_revision(source, revision)
    on_store = fetch_store_snapshot(name)
    with on_store.named_errors():
        return _open(name, None, on_store.root, on_store.weights, snapshot=on_store)


def check_no_revision(source: str | Path, revision: str | None) -> None:
    """Raises CheckpointError where a revision is given of a local path or a URL, which have none."""
    if revision is not None:
        kind = "an object store" if is_store_url(str(source)) and not os.path.lexists(source) else "a local path"
        raise CheckpointError(
            f"{source}: revision {revision!r} was given for {kind}; only Hub repositories have revisions. "
            "Leave --revision out, or give the Hub id."
        )


def _open_file(source: str, path: Path) -> Checkpoint:
    check_regular_file(path)
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        raise CheckpointError(
            f"{path}: a GGUF file; safetensors are required here. Convert it with mxconv quantize and pass the package."
        )
    if suffix not in (".safetensors", ".bin"):
        raise CheckpointError(
            f"{path}: a file that ends in {path.suffix!r}; a model folder, a .safetensors or a .gguf file is required. "
            "Pass the folder that holds config.json and the weights."
        )
    weights = Weights((path.name,), is_legacy=suffix == ".bin")
    return _open(source, None, path.parent, weights, is_single_file=True)


def _open(
    source: str,
    commit: str | None,
    root: Path,
    weights: Weights,
    *,
    is_single_file: bool = False,
    snapshot: StoreSnapshot | None = None,
    spool: "Spool | None" = None,
) -> Checkpoint:
    index_file = None if weights.index is None else root / weights.index
    paths = {
        shard: root / shard if index_file is None or snapshot is not None else resolve_shard(index_file, shard)
        for shard in weights.shards
    }
    names = [] if is_single_file else companions(_file_names(root))
    for name in names:
        check_regular_file(root / name)
    config = read_json_object(root / "config.json", unique_keys=False) if "config.json" in names else None
    files: dict[str, WeightFile] = {}
    try:
        for shard, path in paths.items():
            if snapshot is not None and spool is not None:
                files[shard] = spool.open_file(snapshot.store, shard, path)
            elif snapshot is not None:
                files[shard] = RangedFile(snapshot.store, shard, path)
            elif weights.is_legacy:
                from mxconv.checkpoint.legacy import LegacyFile  # late: few checkpoints still are

                files[shard] = LegacyFile(path)
            else:
                files[shard] = MappedFile(path)
        if index_file is not None and weights.weight_map is not None:
            check_index(index_file, weights.weight_map, files)
        tensors = {name: SourceTensor(name, file) for file in files.values() for name in file.entries}
        if not tensors:
            raise CheckpointError(
                f"{source}: its weight files hold no tensors; at least one is required. Export the model again."
            )
    except BaseException:
        for file in files.values():
            file.close()
        if spool is not None:
            spool.close()
        raise
    return Checkpoint(
        id=source,
        commit=commit,
        root=root,
        weight_files=tuple(sorted(paths.values())),
        companion_files=tuple(root / name for name in names),
        index_file=index_file,
        tensors=MappingProxyType(dict(sorted(tensors.items()))),
        config=config,
        container="safetensors" if not weights.is_legacy else ".pt" if weights.shards[0].endswith(".pt") else ".bin",
        _files=tuple(files.values()),
        derive_files=partial(_derive_tokenizer, root) if MODEL_FILE in names and TOKENIZER_FILE not in names else dict,
        snapshot=snapshot,
        spool=spool,
    )


def _derive_tokenizer(root: Path) -> dict[str, bytes]:
    """The tokenizer.json of a folder with tokenizer.model alone; none of a kind that is not read, which is still
    quantized: `generate` then says why it cannot be decoded."""
    from mxconv.checkpoint.tokenizer_files import derive_from_pieces  # late: most folders have a tokenizer.json

    try:
        return {TOKENIZER_FILE: derive_from_pieces(root)}
    except CheckpointError:
        return {}


def _file_names(root: Path) -> list[str]:
    """Everything directly in a folder but its subfolders, and further templates; broken links are listed, and reported
    when read."""
    templates = (root / TEMPLATES_FOLDER).glob("*.jinja")
    try:
        return sorted(path.relative_to(root).as_posix() for path in (*root.iterdir(), *templates) if not path.is_dir())
    except OSError as error:
        raise CheckpointError(
            f"{root}: cannot be listed ({error.strerror}); a readable folder is required. Check its permissions."
        ) from error


def hash_file(file: Path | RangedFile, advance: Advance) -> str:
    """Return the SHA-256 of a file here or on a store: a task."""
    if isinstance(file, Path):
        return sha256_file(file, advance)
    if file.sha256 is not None:
        advance(file.num_bytes)
        return file.sha256
    digest = hashlib.sha256()
    for begin in range(0, file.num_bytes, BLOCK_BYTES):
        window = file.window(begin, min(begin + BLOCK_BYTES, file.num_bytes))
        digest.update(window.data)
        advance(len(window))
    return digest.hexdigest()
