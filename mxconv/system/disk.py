"""Space on a disk, flushing to it, and reading and writing at an offset beside other threads."""

import errno
import os
import shutil
import sys
import threading
from io import FileIO
from pathlib import Path

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
