"""Opening files that a user named: only regular ones, and with the system's reason when that fails."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mxconv.errors import CheckpointError


def check_regular_file(path: Path) -> int:
    """The length in bytes of a regular file; symbolic links are followed.

    Raises:
        CheckpointError: there is no such file, its links form a loop, or it is a folder, a pipe or a device.
    """
    try:
        status = os.stat(path)  # noqa: PTH116  Path.stat reports a loop as RuntimeError in some versions
    except OSError as error:
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise CheckpointError(f"{path}: is {kind}; a regular file is required. Check the path.")
    return status.st_size


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open for reading; what the system reports then and while the file is read becomes a CheckpointError."""
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    if error.errno == errno.ELOOP:
        return CheckpointError(
            f"{path}: its symbolic links form a loop; they must lead to a file. "
            "Replace the link by the file it stands for."
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        found = "a symbolic link that leads nowhere" if path.is_symlink() else "no such file"
        return CheckpointError(f"{path}: {found}; a readable file is required. Check the path, or download it again.")
    return CheckpointError(
        f"{path}: cannot be read ({error.strerror or error}); a readable file is required. "
        "Check its permissions and the disk."
    )
