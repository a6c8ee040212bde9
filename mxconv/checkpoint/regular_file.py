"""Files that a user named, opened and hashed, and JSON in them: only regular files, bounded; errors name the file."""

import errno
import hashlib
import json
import ntpath
import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from mxconv.errors import CheckpointError
from mxconv.system.processor import will_read
from mxconv.workers import Advance, uncounted

POINTER, MAX_POINTER_BYTES = b"version https://git-lfs", 1024  # how Git LFS's stand-in for a file begins; its length
CHUNK_BYTES = 1 << 18  # that are hashed at a time: they stay in a core's own cache
AHEAD_BYTES = 1 << 26  # what the disk is asked for beforehand
MAX_JSON_BYTES = 100_000_000  # the index of a model with a million tensors is about this long


def check_regular_file(path: Path) -> int:
    """The length in bytes of a regular file; symbolic links are followed. Raises CheckpointError where there is no such
    file, its links form a loop, it is a folder, a pipe or a device, or Git LFS's pointer in place of the file."""
    try:
        status = os.stat(path)  # noqa: PTH116  Path.stat reports a loop as RuntimeError in some versions
    except OSError as error:
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise CheckpointError(f"{path}: is {kind}; a regular file is required. Check the path.")
    if len(POINTER) <= status.st_size <= MAX_POINTER_BYTES:
        with open_file(path) as file:
            if file.read(len(POINTER)) == POINTER:
                raise pointer_error(path)
    return status.st_size


def pointer_error(path: Path | str) -> CheckpointError:
    """The error for Git LFS's pointer in place of a file."""
    return CheckpointError(
        f"{path}: a Git LFS pointer, which names the file and does not hold it; the file itself is required. Run "
        "`git lfs pull` in its folder, or download it again, say with `hf download`."
    )


def stays_inside(name: str) -> bool:
    """Whether a relative path leads to a file in its folder, by its text alone and for every system: no root, no drive,
    no `..`, no backslash."""
    return (
        bool(posixpath.basename(name))
        and not name.startswith("/")
        and not ntpath.splitdrive(name)[0]
        and not any(character in name for character in "\\\0")
        and ".." not in name.split("/")
    )


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
            f"{path}: its symbolic links form a loop; they must lead to a file. Replace the link by the file itself."
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        found = "a symbolic link that leads nowhere" if path.is_symlink() else "no such file"
        return CheckpointError(f"{path}: {found}; a readable file is required. Check the path, or download it again.")
    return CheckpointError(
        f"{path}: cannot be read ({error.strerror or error}); a readable file is required. "
        "Check its permissions and the disk."
    )


def parse_json_object(raw: bytes, label: str, *, unique_keys: bool) -> dict[str, Any]:
    """Parse one JSON object in UTF-8, which the errors call `label`.

    Raises:
        CheckpointError: it is no UTF-8, no JSON, no object, or with `unique_keys` has a key twice at any depth.
    """

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(
                f"{label}: the JSON key {twice!r} occurs twice in one object; keys must be unique. "
                "Download or export the file again."
            )
        return members

    try:
        parsed = json.loads(raw.decode("utf-8"), object_pairs_hook=refuse_duplicates if unique_keys else None)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{label}: no valid JSON in UTF-8 ({error}); a JSON object is required. Download or export the file again."
        ) from error
    if not isinstance(parsed, dict):
        raise CheckpointError(
            f"{label}: a JSON {type(parsed).__name__} is at the top; a JSON object is required. "
            "Download or export the file again."
        )
    return parsed


def read_json_object(path: Path, *, unique_keys: bool) -> dict[str, Any]:
    """Read a file that holds one JSON object. Raises CheckpointError where it cannot be read, is longer than 100 MB, or
    `parse_json_object` refuses it."""
    num_bytes = check_regular_file(path)
    if num_bytes > MAX_JSON_BYTES:
        raise CheckpointError(
            f"{path}: {num_bytes:,} bytes long; at most {MAX_JSON_BYTES:,} bytes of JSON are read. "
            "Check that it is the file its name says."
        )
    with open_file(path) as file:
        return parse_json_object(file.read(num_bytes), str(path), unique_keys=unique_keys)


class Look(NamedTuple):
    """Length and time of a file, by which a change is noticed."""

    num_bytes: int
    modified_ns: int

    @classmethod
    def at(cls, path: Path) -> "Look":
        """Raises CheckpointError where there is no file."""
        try:
            status = path.stat()
        except OSError as error:
            raise CheckpointError(
                f"{path}: {error.strerror}; workers need every file under the path at which the command found it. "
                "Put it into a folder that all nodes share."
            ) from error
        return cls(status.st_size, status.st_mtime_ns)


def check_look(path: Path, look: Look) -> None:
    """Raises CheckpointError where the length or time of a file is another."""
    now = Look.at(path)
    if now != look:
        change = f"from {look.num_bytes:,} to {now.num_bytes:,} bytes" if now.num_bytes != look.num_bytes else "in time"
        raise CheckpointError(
            f"{path}: changed {change} while it was read; a checkpoint must stay as it is. "
            "Wait until it is complete and run again."
        )


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
