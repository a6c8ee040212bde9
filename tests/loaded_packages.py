"""Tiny packages and what their levels compute, for the tests of what loads them."""

from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import write_tiny_llama

from mxconv.arch.families.registry import describe_file
from mxconv.checkpoint.regular_file import sha256_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import dense_weights
from mxconv.engine.weights import DeferredMatrix
from mxconv.kernels.engine import choose_engine
from mxconv.package.manifest import FILE_NAME, FileRecord, Manifest, read_manifest

IDS = [int(token) for token in np.random.default_rng(8).integers(0, 96, 20)]


PROJECTION = "model.layers.0.mlp.gate_proj.weight"


def kind(matrix: Any) -> type:
    """Which matrix it is, once it is made, or which one it is a native copy of."""
    made = matrix.matrix if isinstance(matrix, DeferredMatrix) else matrix
    return type(getattr(made, "reference", made))


def pack(source: Path, package: Path, **options: Any) -> Path:
    with open_checkpoint(source) as checkpoint:
        convert(checkpoint, package, QuantizeOptions(**options))
    return package


def logits(decoder: Decoder, ids: list[int] = IDS) -> np.ndarray:
    return decoder.forward(ids, KVCache(decoder.config))


def source_logits(source: Path, ids: list[int] = IDS) -> np.ndarray:
    """Of the 16-bit checkpoint itself."""
    with open_checkpoint(source) as checkpoint:
        config = describe_file(source / "config.json")
        matrices = Matrices(choose_engine())
        return logits(matrices.decoder(config, dense_weights(checkpoint.tensors, config, matrices), "source"), ids)


def rewrite(package: Path, **changes: Any) -> None:
    """Change the manifest as an adversary would: digests and lengths of all files set right again."""
    manifest = read_manifest(package)
    names = sorted(path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file())
    files = [
        FileRecord(path=name, num_bytes=(package / name).stat().st_size, sha256=sha256_file(package / name))
        for name in names
        if name != FILE_NAME
    ]
    manifest = manifest.model_copy(update={"files": files, **changes})
    (package / FILE_NAME).write_bytes(Manifest.model_validate(manifest.model_dump()).to_bytes())


def three_levels(folder: Path) -> Path:
    source = write_tiny_llama(folder / "source")
    small = write_tiny_llama(folder / "small", seed=1, num_hidden_layers=1)
    return pack(source, folder / "package", drafts=(f"checkpoint:{small}",))
