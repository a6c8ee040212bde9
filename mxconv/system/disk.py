"""Space on a disk, flushing to it, and files that are written beside their place and renamed when they are complete.

A folder that replaces another one:

    NAME                  becomes NAME.mxconv-replaced
    the new folder        becomes NAME
    NAME.mxconv-replaced  is deleted

A kill between the renames leaves no NAME; `recover` puts the old one back.
"""

import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from mxconv.errors import MxconvError, PackageError

RENAMES_OPEN_FILES = sys.platform != "win32"  # Windows renames no folder in which a file is open


def reserve(file: FileIO, num_bytes: int) -> None:
    """Give a file open for writing this length, and room on the disk; new bytes are zeros. Raises OSError, ENOSPC
    where there is no room."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, num_bytes)
    else:
        status = os.fstat(file.fileno())
        there = status.st_size
        if sys.platform != "win32":  # macOS makes a file with a hole, which a disk that is full takes
            there = status.st_blocks * 512
        if num_bytes - there > shutil.disk_usage(file.name).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(file.fileno(), num_bytes)


def flush_file(path: Path) -> None:
    """Wait until a file's bytes are on the disk. Raises OSError where the system refuses."""
    with path.open("r+b") as file:  # Windows flushes only what may be written
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Wait until a folder's names are on the disk; on Windows, which opens no folders, they are in NTFS's own journal.
    Raises OSError where the system refuses."""
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def settle() -> None:
    """Wait until all pending writes of the machine are on its disks; Windows has no call for that."""
    if hasattr(os, "sync"):
        os.sync()


_PLACE = threading.Lock()  # Windows has one position a file, and no call that leaves it alone


def read_at(file: FileIO, num_bytes: int, offset: int) -> bytes:
    """Up to this many bytes at an offset; none at the end of the file. Raises OSError where the system refuses."""
    if sys.platform != "win32" and hasattr(os, "pread"):
        return os.pread(file.fileno(), num_bytes, offset)
    with _PLACE:
        file.seek(offset)
        return file.read(num_bytes)


def write_at(file: FileIO, content: bytes | memoryview, offset: int) -> None:
    """Write all of it at an offset. Raises OSError where the system refuses."""
    rest = memoryview(content)
    while rest:
        if sys.platform != "win32" and hasattr(os, "pwrite"):
            num_written = os.pwrite(file.fileno(), rest, offset)
        else:
            with _PLACE:
                file.seek(offset)
                num_written = file.write(rest)
        rest, offset = rest[num_written:], offset + num_written


def named(target: Path) -> Path:
    """The path with a last name to append to, which "." and ".." are not."""
    return target if target.name not in ("", "..") else target.resolve()


def aside(target: Path) -> Path:
    """Where a folder waits while it is replaced; a name that nobody else gives."""
    return target.with_name(target.name + ".mxconv-replaced")


def recover(target: Path) -> None:
    """Finish a replacement that a kill interrupted: put the old folder back, or delete what is left of it.

    Raises:
        PackageError: the system does not allow it.
    """
    target = named(target)
    old = aside(target)
    if not os.path.lexists(old):
        return
    try:
        if os.path.lexists(target) or not any(old.glob("mxconv*.json")):  # whole packages and exports have one
            remove(old)
        else:
            old.rename(target)
    except OSError as error:
        raise PackageError(
            f"{target}: an interrupted replacement cannot be finished ({error.strerror or error}); the old folder is "
            f"to be found at {old}. Move it back, or delete it."
        ) from error


def check_folder(target: Path, mark: str, what: str, force: bool) -> None:
    """Refuse to overwrite anything but folders with this mark, and these only with --force.

    Args:
        target: the folder to write.
        mark: a file that says that a folder may be replaced.
        what: the name of such a folder: "package".
        force: whether --force is given.

    Raises:
        PackageError: something is there.
    """
    if not os.path.lexists(target):
        return
    if not force:
        raise PackageError(f"{target}: exists; nothing is overwritten. Choose another output, or use --force.")
    if target.is_symlink() or not target.is_dir() or not (target / mark).is_file():
        raise PackageError(
            f"{target}: exists and is no {what}; --force replaces {what}s only. Choose another output, or remove it."
        )


def put_in_place(made: Path, target: Path) -> None:
    """Rename a finished folder; `check_folder` allows it to replace what is there.

    Raises:
        OSError: the system does not allow it; what was there is there again.
    """
    if target.exists():
        remove(aside(target))
        target.rename(aside(target))
    try:
        made.rename(target)
    except OSError:
        if aside(target).exists():
            aside(target).rename(target)
        raise
    flush_folder(target.parent)
    remove(aside(target))


def remove(path: Path) -> None:
    """Delete a file, a link or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_output(path: Path, force: bool | None) -> None:
    """Check before long work that a file can be written; None: the command has no --force.

    Raises:
        MxconvError: it exists and `force` is not set, it is a folder, or its folder does not exist.
    """
    if path.is_dir():
        raise MxconvError(f"{path}: is a folder; a file to write is required. Choose another name.")
    if os.path.lexists(path) and not force:
        remedy = "Choose another name." if force is None else "Choose another name, or give --force."
        raise MxconvError(f"{path}: exists; nothing is overwritten. {remedy}")
    if not path.parent.is_dir():
        raise MxconvError(f"{path}: its folder {path.parent} does not exist; it must. Create it first.")


def write_output(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file of the same suffix beside `path`, and rename it when it is complete.

    Raises:
        MxconvError: the file system refuses.
    """
    partial = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        write(partial)
        partial.replace(path)
    except OSError as error:
        raise MxconvError(f"{path}: cannot be written ({error.strerror}). Check space and permissions.") from error
    finally:
        partial.unlink(missing_ok=True)
