"""Replacing a package with --force: the old one steps aside, whole, until the new one is in place.

    PACKAGE                  becomes PACKAGE.mxconv-replaced
    PACKAGE.partial          becomes PACKAGE
    PACKAGE.mxconv-replaced  is deleted

A kill between the renames leaves no PACKAGE, and the next conversion puts the old one back before it does anything
else.
"""

import os
import shutil
from pathlib import Path

from mxconv.errors import PackageError
from mxconv.package.manifest import FILE_NAME
from mxconv.system.disk import flush_folder


def named(target: Path) -> Path:
    """The path with a last name to append to, which "." and ".." are not."""
    return target if target.name not in ("", "..") else target.resolve()


def aside(target: Path) -> Path:
    """Where a package waits while it is replaced; a name that nobody else gives."""
    return target.with_name(target.name + ".mxconv-replaced")


def recover_folder(target: Path) -> None:
    """Finish a replacement that a kill interrupted: put the old package back, or delete it where the new one is.

    Raises:
        PackageError: the system does not allow it.
    """
    target = named(target)
    old = aside(target)
    if not os.path.lexists(old):
        return
    try:
        if os.path.lexists(target) or not (old / FILE_NAME).is_file():
            remove(old)
        else:
            old.rename(target)
    except OSError as error:
        raise PackageError(
            f"{target}: an interrupted replacement cannot be finished ({error.strerror or error}); the old package is "
            f"to be found at {old}. Move it back, or delete it."
        ) from error


def check_folder(target: Path, force: bool) -> None:
    """Refuse to overwrite anything but a package, and that only with --force.

    Raises:
        PackageError: something is there.
    """
    if not os.path.lexists(target):
        return
    if not force:
        raise PackageError(f"{target}: exists; nothing is overwritten. Choose another output, or use --force.")
    if target.is_symlink() or not target.is_dir() or not (target / FILE_NAME).is_file():
        raise PackageError(
            f"{target}: exists and is no package; --force replaces packages only. Choose another output, or remove it."
        )


def put_in_place(made: Path, target: Path) -> None:
    """Rename a finished folder; `check_folder` allows it to replace what is there.

    Raises:
        OSError: the system does not allow it.
    """
    if target.exists():
        remove(aside(target))
        target.rename(aside(target))
    made.rename(target)
    flush_folder(target.parent)
    remove(aside(target))


def remove(path: Path) -> None:
    """Delete a file, a link or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
