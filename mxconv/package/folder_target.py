"""Replacing a package with --force: the old one steps aside, whole, until the new one is in place.

    PACKAGE           becomes PACKAGE.replaced, with a marker in it
    PACKAGE.partial   becomes PACKAGE
    PACKAGE.replaced  is deleted

A kill between the renames leaves no PACKAGE, and the next conversion puts the old one back before it does anything
else. A folder of that name without the marker is somebody else's: it is refused, never deleted.
"""

import os
import shutil
from pathlib import Path

from mxconv.errors import PackageError
from mxconv.package.manifest import FILE_NAME

MARKER = ".mxconv-replaced"


def aside(target: Path) -> Path:
    """Where a package waits while it is replaced."""
    return target.with_name(target.name + ".replaced")


def recover(target: Path) -> None:
    """Finish what a kill interrupted: put the old package back, or delete it where the new one is in place.

    Raises:
        OSError: the system does not allow it.
    """
    old = aside(target)
    if not _is_marked(old):
        return
    if os.path.lexists(target) or not (old / FILE_NAME).is_file():
        _delete(old)
    else:
        old.rename(target)
        (target / MARKER).unlink()


def step_aside(target: Path) -> None:
    """Make room for the new package.

    Raises:
        PackageError: something that is not ours is where the old package has to wait.
        OSError: the system does not allow it.
    """
    check_aside(target)
    delete_old(target)
    if aside(target).is_dir():  # and empty; Windows renames onto nothing that is there
        aside(target).rmdir()
    (target / MARKER).touch()
    target.rename(aside(target))


def check_aside(target: Path) -> None:
    """Refuse early what `step_aside` would refuse.

    Raises:
        PackageError: something that is not ours is where the old package has to wait.
    """
    old = aside(target)
    # an empty folder is what a kill at the very end of a deletion leaves
    is_empty = old.is_dir() and not old.is_symlink() and not any(old.iterdir())
    if os.path.lexists(old) and not is_empty and not _is_marked(old):
        raise PackageError(f"{old}: exists; the old package has to wait there while it is replaced. Move it away.")


def delete_old(target: Path) -> None:
    """Delete the package that stepped aside."""
    if _is_marked(aside(target)):
        _delete(aside(target))


def _is_marked(old: Path) -> bool:
    return not old.is_symlink() and (old / MARKER).is_file()


def _delete(old: Path) -> None:
    """The marker goes last, so that a kill leaves something that is still known as ours."""
    for path in old.iterdir():
        if path.name != MARKER:
            remove(path)
    (old / MARKER).unlink()
    old.rmdir()


def remove(path: Path) -> None:
    """Delete a file, a link or a whole folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


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
        PackageError: the path exists, or, with --force, something is where the old package has to wait.
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
