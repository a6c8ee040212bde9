"""Whether the files of a package are those that its manifest lists."""

from pathlib import Path

from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.manifest import Manifest
from mxconv.checkpoint.package import inside
from mxconv.checkpoint.regular_file import check_regular_file
from mxconv.errors import CheckpointError, PackageError
from mxconv.progress import Progress, silent


def damaged_files(path: Path, manifest: Manifest, progress: Progress = silent) -> list[str]:
    """Hash every file that a manifest lists; those whose length or SHA-256 is not the recorded one.

    Raises:
        PackageError: a file is missing, no regular file, or cannot be read.
    """
    total = sum(record.num_bytes for record in manifest.files)
    done, damaged = 0, []
    for record in manifest.files:
        file = inside(path, record.path)
        try:
            is_whole = check_regular_file(file) == record.num_bytes and sha256_file(file) == record.sha256
        except CheckpointError as error:
            raise PackageError(f"{error} It is part of the package {path}.") from error
        if not is_whole:
            damaged.append(record.path)
        done += record.num_bytes
        progress("hash package", done, total)
    return damaged
