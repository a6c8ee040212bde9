"""SHA-256 of files that do not fit into memory."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from mxconv.checkpoint.regular_file import check_regular_file, open_file

CHUNK_BYTES = 1 << 20


def sha256_file(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """The SHA-256 of a file's bytes, in hex.

    Args:
        path: a regular file.
        progress: called with the number of bytes of each chunk once it is hashed.

    Raises:
        CheckpointError: it cannot be read.
    """
    check_regular_file(path)
    digest = hashlib.sha256()
    chunk = bytearray(CHUNK_BYTES)
    window = memoryview(chunk)
    with open_file(path) as file:
        if hasattr(os, "posix_fadvise"):  # read ahead further; not on macOS
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while num_bytes := file.readinto(chunk):  # type: ignore[attr-defined]
            digest.update(window[:num_bytes])
            if progress is not None:
                progress(num_bytes)
    return digest.hexdigest()
