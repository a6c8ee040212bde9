"""Where a package goes and grows: a folder, or a folder on an object store."""

from pathlib import Path

from mxconv.checkpoint.object_store import Store, is_store_url, parse_store_url
from mxconv.checkpoint.source import Checkpoint
from mxconv.errors import PackageError
from mxconv.package.folder_staging import FolderStaging
from mxconv.package.growing_shard import FolderSink
from mxconv.package.manifest import FILE_NAME
from mxconv.package.store_staging import StoreStaging, UploadedShard, check_store
from mxconv.system.disk import check_folder

Target = Path | Store

Staging = FolderStaging | StoreStaging
"""The growing package of one conversion: tensors are encoded in any order, by any process."""

Sink = FolderSink | UploadedShard
"""Takes the arrays of some tensors; it can be sent to another process."""


def parse_target(text: str) -> Target:
    """The target that `--output` names.

    Raises:
        PackageError: a package cannot be written there.
        MxconvError: no such protocol, or the package that speaks it is not installed.
    """
    if not is_store_url(text):
        return Path(text)
    protocol, url = parse_store_url(text)
    if protocol == "hf":
        raise PackageError(
            f"{url}: packages are not written to the Hub while they grow; a folder, or a store as s3://BUCKET/FOLDER, "
            "is required. Convert into a folder, and send it with `mxconv push`."
        )
    if protocol == "memory":
        raise PackageError(f"{url}: ends with this command; a folder or a store is required. Choose another output.")
    return Store(url, PackageError)


def check_target(target: Target, force: bool) -> None:
    """Refuse to overwrite anything but a package in a folder, and that only with --force.

    Raises:
        PackageError: something is there.
    """
    if isinstance(target, Store):
        check_store(target)
    else:
        check_folder(target, FILE_NAME, "package", force)


def open_staging(target: Target, fingerprint: str) -> Staging:
    """Begin the package, or go on with it.

    Raises:
        PackageError: something else is in the way, or it cannot be written.
    """
    return StoreStaging(target) if isinstance(target, Store) else FolderStaging(target, fingerprint)


def check_apart(checkpoint: Checkpoint, target: Target) -> None:
    """Refuse to replace the folder that is being read.

    Raises:
        PackageError: weights lie in it.
    """
    if isinstance(target, Store):
        source = parse_store_url(checkpoint.id)[1] if is_store_url(checkpoint.id) else ""
        inside = [source] if f"{source}/".startswith(f"{target}/") else []
    else:
        folder = target.resolve()
        inside = [path.name for path in checkpoint.weight_files if path.resolve().is_relative_to(folder)]
    if inside:
        raise PackageError(
            f"{target}: holds {inside[0]}, which is being converted; source and package must be apart. "
            "Choose another output."
        )
