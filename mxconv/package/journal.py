"""The journal of a conversion: what it writes for itself, so that it can resume.

    line 1      {"fingerprint": ...} of the source files and options
    each other  a shard that is whole: its hash, and those of its tensors

A kill may cut the last line short; lines that are no JSON object are skipped, so that one of them costs one shard.
While a conversion runs the journal is locked, and a second one into the same folder is refused.
"""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from mxconv.errors import PackageError

FILE_NAME = ".mxconv-journal"


def fingerprint(*parts: object) -> str:
    """SHA-256 over the JSON of everything that decides the bytes of a package."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Journal:
    """An open, locked journal."""

    def __init__(self, folder: Path) -> None:
        """Open or create the folder and its journal.

        Raises:
            PackageError: the folder is not one that a conversion left, or another process is writing it.
            OSError: it cannot be created or opened.
        """
        path = folder / FILE_NAME
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        is_folder = folder.is_dir() and not folder.is_symlink()
        # a kill right after mkdir leaves an empty folder, which is ours to use
        if not is_folder or not (path.is_file() or not any(folder.iterdir())):
            raise PackageError(
                f"{folder}: exists and is no interrupted conversion; this path is needed while converting. "
                "Move it away, or choose another output."
            )
        self._file = path.open("a+b", buffering=0)
        try:
            self._lock(folder)
            self._file.seek(0)
            text = self._file.read().decode(errors="replace")
        except BaseException:
            self._file.close()
            raise
        self.lines = _parsed(text)
        self._ends_in_line = text.endswith("\n") or not text

    def begin(self, fingerprint: str) -> None:
        """Forget everything and write the first line."""
        self._file.truncate(0)
        self.lines, self._ends_in_line = [], True
        self.add({"fingerprint": fingerprint})

    def add(self, line: dict[str, Any]) -> None:
        """Append one line in one write."""
        text = ("" if self._ends_in_line else "\n") + json.dumps(line) + "\n"
        self._ends_in_line = False  # until all of it is written
        rest = memoryview(text.encode())
        while rest:
            rest = rest[self._file.write(rest) :]
        self._ends_in_line = True

    def close(self) -> None:
        """Close and unlock."""
        self._file.close()

    def _lock(self, folder: Path) -> None:
        try:
            is_ours = lock_descriptor(self._file.fileno(), blocking=False)
        except OSError:
            return  # a file system without locks
        if not is_ours:
            raise PackageError(
                f"{folder}: another process is converting into it; one at a time is required. "
                "Wait until it ends, or choose another output."
            )


def _parsed(text: str) -> list[dict[str, Any]]:
    lines = []
    for line in text.split("\n"):
        with contextlib.suppress(ValueError, RecursionError):
            lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict)]
