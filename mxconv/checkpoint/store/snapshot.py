"""A checkpoint on an object store: small files come into a folder of this process, weights stay where they are."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from mxconv.checkpoint.folder import Weights, choose_weights, companions, index_names
from mxconv.checkpoint.json_file import MAX_JSON_BYTES
from mxconv.checkpoint.store.ranged_file import RangedFile, RangedTensor
from mxconv.checkpoint.store.store import Store
from mxconv.checkpoint.tensor import SourceTensor, WeightFile
from mxconv.errors import CheckpointError


@dataclass(frozen=True)
class StoreSnapshot:
    """What was found."""

    store: Store
    folder: "tempfile.TemporaryDirectory[str]"  # of the small files
    weights: Weights

    def close(self) -> None:
        """Delete the folder."""
        self.folder.cleanup()

    @property
    def root(self) -> Path:
        return Path(self.folder.name)

    def open_weights(self, shard: str) -> RangedFile:
        """A weight file.

        Raises:
            CheckpointError: it is not there, or its header is refused.
        """
        return RangedFile(self.store, shard, self.root / shard)

    def tensor(self, name: str, file: WeightFile) -> SourceTensor:
        """A tensor of a weight file."""
        return RangedTensor(name, cast(RangedFile, file))

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors in the block name the files where they came from; nothing is left behind one."""
        try:
            yield
        except CheckpointError as error:
            self.close()
            raise CheckpointError(str(error).replace(str(self.root), self.store.url)) from error
        except BaseException:
            self.close()
            raise


def fetch_store_snapshot(url: str) -> StoreSnapshot:
    """Get what says which files are the weights, and what goes along with them.

    Args:
        url: of a folder with a model in the Hugging Face layout.

    Raises:
        MxconvError: no such folder, nobody answers, or it holds no safetensors.
    """
    store = Store(url)
    if store.url.endswith((".safetensors", ".gguf", ".bin")):
        raise CheckpointError(f"{url}: a file; the folder that holds the model is required on an object store.")
    looks = store.looks()
    if not looks:
        raise CheckpointError(
            f"{url}: no such folder, or an empty one; one with a model is required. Check the address."
        )
    top = [name for name in looks if "/" not in name]
    found = StoreSnapshot(
        store, tempfile.TemporaryDirectory(prefix="mxconv-"), Weights((), None, None, is_legacy=False)
    )
    with found.told():
        for name in {*companions(top), *index_names(top)}:
            if looks[name].num_bytes > MAX_JSON_BYTES:
                raise CheckpointError(
                    f"{store.path(name)}: {looks[name].num_bytes:,} bytes long; at most {MAX_JSON_BYTES:,} of a file "
                    "beside the weights are read. Check that it is the file its name says."
                )
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
