"""A model or a recipe given in the place of a package: converted or built once into the cache."""

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mxconv.cli.output import progress_bars

if TYPE_CHECKING:
    from mxconv.checkpoint.source import Checkpoint
    from mxconv.progress import Progress


def package_name(source: str, codec: str) -> str:
    """Return NAME-CODEC, where NAME is the last part of a folder, an id or a URL, or a file's without its suffix."""
    from mxconv.checkpoint.hub import parse_address

    place = Path(source)
    if not place.exists():
        name = parse_address(source, None)[0].rstrip("/").rpartition("/")[2]
    else:
        place = place.absolute() if place.name not in ("", "..") else place.resolve()
        name = place.name if place.is_dir() else place.stem
        if place.parent.name == "snapshots":  # of a commit in the Hub cache
            name = place.parent.parent.name.rpartition("--")[2]
    return f"{name or 'model'}-{codec}"


def find_or_build(package: str, revision: str | None, progress: "Progress") -> Path:
    """Return a package's folder as `find_package` does, after building it once where a repository holds its recipe.

    Raises:
        MxconvError: there is no such package, or the recipe cannot be built.
    """
    from mxconv.package.package_folder import UnbuiltRecipeError, find_package

    try:
        return find_package(package, revision, progress)
    except UnbuiltRecipeError as error:
        from mxconv.rebuild import build_in_cache  # all of a conversion

        return build_in_cache(error.repo_id, error.snapshot, progress)


def package_of(given: str) -> str:
    """Return what was given where it is a package, and the package of a model that was given in its place.

    The model is converted to MXFP4 with its target, a quantized GGUF file in BF16, and the package stays in the cache
    beside the Hub's files, under a name that changes with the model's files.

    Raises:
        MxconvError: it is no model either, or cannot be converted.
    """
    if not _is_model(given):
        return given
    from filelock import FileLock
    from huggingface_hub import cached_assets_path

    from mxconv.conversion.options import QuantizeOptions
    from mxconv.convert import convert
    from mxconv.open_source import open_source
    from mxconv.system.processor import usable_processors

    with open_source(given) as checkpoint:
        is_rounded = any(tensor.quantized_type for tensor in checkpoint.tensors.values())
        name = f"{package_name(given, 'mxfp4')}-{_digest(checkpoint)}"
        folder = cached_assets_path("mxconv", "packages", "converted") / name
        with FileLock(folder.with_name(f"{name}.lock")):
            if folder.is_dir():
                return str(folder)
            print(f"{given}: a model, converted once to {folder}", file=sys.stderr)
            options = QuantizeOptions(
                dtype="bf16" if is_rounded else None, target="include", num_threads=usable_processors()
            )
            with progress_bars() as progress:
                convert(checkpoint, folder, options, progress)
    return str(folder)


def _is_model(given: str) -> bool:
    """Whether a model lies where a package is wanted; what is neither is left to the reader of packages."""
    from mxconv.checkpoint.folder import PACKAGE_FILE, holds_weights
    from mxconv.checkpoint.hub import is_hub_id, parse_address
    from mxconv.package.package_folder import UnbuiltRecipeError, find_package_or_none

    if os.path.lexists(given):
        return not os.path.lexists(Path(given, PACKAGE_FILE)) and holds_weights(Path(given))
    if not is_hub_id(parse_address(given, None)[0]):
        return False
    with progress_bars() as progress:
        try:
            return find_package_or_none(given, progress=progress) is None
        except UnbuiltRecipeError:
            find_or_build(given, None, progress)
            return False


def _digest(checkpoint: "Checkpoint") -> str:
    """Sixteen digits that change with a checkpoint's files and with mxconv's version."""
    from mxconv import __version__

    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in checkpoint.weight_files]
    return hashlib.sha256(repr((__version__, checkpoint.commit, files)).encode()).hexdigest()[:16]
