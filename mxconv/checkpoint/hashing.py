"""SHA-256 of files that do not fit into memory."""

import hashlib
from pathlib import Path

from mxconv.checkpoint.ranged_file import BLOCK_BYTES, RangedFile
from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.system.processor import will_read
from mxconv.workers import Advance, uncounted

CHUNK_BYTES = 1 << 18  # what is read stays in a core's own cache until it is hashed
AHEAD_BYTES = 1 << 26  # what the disk is asked for beforehand


def sha256_file(path: Path, advance: Advance = uncounted) -> str:
    """The SHA-256 of a regular file, in hex; `advance` is called with the bytes of each piece once it is hashed.

    Raises:
        CheckpointError: it cannot be read.
    """
    check_regular_file(path)
    digest, chunk, num_bytes = hashlib.sha256(), bytearray(CHUNK_BYTES), 0
    window = memoryview(chunk)
    with open_file(path) as file:
        while num_read := file.readinto(chunk):  # type: ignore[attr-defined]
            if num_bytes % (AHEAD_BYTES // 2) < CHUNK_BYTES:
                will_read(file, num_bytes, AHEAD_BYTES)
            digest.update(window[:num_read])
            num_bytes += num_read
            advance(num_read)
    return digest.hexdigest()


def hash_file(file: Path | RangedFile, advance: Advance) -> str:
    """Return the SHA-256 of a file here or on a store: a task."""
    if isinstance(file, Path):
        return sha256_file(file, advance)
    digest = hashlib.sha256()
    for begin in range(0, file.num_bytes, BLOCK_BYTES):
        window = file.window(begin, min(begin + BLOCK_BYTES, file.num_bytes))
        digest.update(window.data)
        advance(len(window))
    return digest.hexdigest()
