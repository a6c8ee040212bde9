"""Reading and writing at an offset, side by side with other threads: one call of the system, or a seek under a lock."""

import os
import sys
import threading
from io import FileIO

_PLACE = threading.Lock()  # Windows has one position a file, and no call that leaves it alone


def read_at(file: FileIO, num_bytes: int, offset: int) -> bytes:
    """Up to this many bytes at an offset; none at the end of the file.

    Raises:
        OSError: the system refuses.
    """
    if sys.platform != "win32" and hasattr(os, "pread"):
        return os.pread(file.fileno(), num_bytes, offset)
    with _PLACE:
        file.seek(offset)
        return file.read(num_bytes)


def write_at(file: FileIO, content: bytes | memoryview, offset: int) -> None:
    """Write all of it at an offset.

    Raises:
        OSError: the system refuses.
    """
    rest = memoryview(content)
    while rest:
        num_written = _write_some(file, rest, offset)
        rest, offset = rest[num_written:], offset + num_written


def _write_some(file: FileIO, content: memoryview, offset: int) -> int:
    if sys.platform != "win32" and hasattr(os, "pwrite"):
        return os.pwrite(file.fileno(), content, offset)
    with _PLACE:
        file.seek(offset)
        return file.write(content)
