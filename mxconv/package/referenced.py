"""The source checkpoint of a package that references its target instead of holding it."""

from pathlib import Path

from mxconv.checkpoint.source import Checkpoint, open_checkpoint
from mxconv.checkpoint.store.address import is_store_url
from mxconv.errors import PackageError
from mxconv.package.package import Package


def open_referenced(package: Package) -> Checkpoint:
    """Open the source where the manifest says it is; its files must be as long as those that were converted.

    Raises:
        PackageError: a local source is gone, or is another one.
        CheckpointError: it cannot be opened.
    """
    source = package.manifest.source
    is_path = source.commit is None and not is_store_url(source.id)
    if is_path and not Path(source.id).exists():  # open_checkpoint would ask the Hub for it
        raise PackageError(
            f"{source.id}: no such file or folder; {package.root} references its weights there. Restore it, "
            "or convert again with --target include."
        )
    checkpoint = open_checkpoint(source.id, revision=source.commit)
    sizes = {record.path: record.num_bytes for record in source.files}
    found = checkpoint.file_sizes
    for path in checkpoint.weight_files:
        name = path.relative_to(checkpoint.root).as_posix()
        if sizes.get(name) != found[path]:
            checkpoint.close()
            recorded = f"a file of {sizes[name]:,}" if name in sizes else "other files"
            raise PackageError(
                f"{path}: {found[path]:,} bytes; {package.root} was converted from {recorded}. "
                "Restore the source, or convert again."
            )
    return checkpoint
