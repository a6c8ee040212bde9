"""The folder that a package will be: what may stand there, and what an interrupted replacement left."""

import os
from pathlib import Path

from mxconv.conversion.replaced import check_aside, recover
from mxconv.errors import PackageError
from mxconv.package.manifest import FILE_NAME


def recover_folder(target: Path) -> None:
    """Finish a replacement that a kill interrupted.

    Raises:
        PackageError: the system does not allow it.
    """
    target = named(target)
    try:
        recover(target)
    except OSError as error:
        raise PackageError(
            f"{target}: an interrupted replacement cannot be finished ({error.strerror or error}); the old package is "
            f"to be found at {target}.replaced. Move it back, or delete it."
        ) from error


def check_folder(target: Path, force: bool) -> None:
    """Refuse to overwrite anything but a package, and that only with --force.

    Raises:
        PackageError: the path exists, or, with --force, something stands where the old package has to wait.
    """
    if not os.path.lexists(target):
        return
    if not force:
        raise PackageError(f"{target}: exists; nothing is overwritten. Choose another output, or use --force.")
    if target.is_symlink() or not target.is_dir() or not (target / FILE_NAME).is_file():
        raise PackageError(
            f"{target}: exists and is no package; --force replaces packages only. Choose another output, or remove it."
        )
    check_aside(named(target))


def named(target: Path) -> Path:
    """The path with a last name to append to, which "." and ".." are not."""
    return target if target.name not in ("", "..") else target.resolve()
