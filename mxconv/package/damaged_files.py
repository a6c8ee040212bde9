"""Whether the files of a package are those that its manifest lists."""

from collections.abc import Callable
from pathlib import Path

from mxconv.checkpoint.hashing import FileHash
from mxconv.errors import CheckpointError, PackageError
from mxconv.package.manifest import FileRecord, Manifest
from mxconv.package.package import inside
from mxconv.progress import Progress, silent
from mxconv.workers import ByteCounter, uncounted


def damaged_files(path: Path, manifest: Manifest, progress: Progress = silent) -> list[str]:
    """Hash every file that a manifest lists; those whose length or SHA-256 is not the recorded one.

    Raises:
        PackageError: a file is missing, no regular file, or cannot be read.
    """
    advance = ByteCounter("hash package", sum(record.num_bytes for record in manifest.files), progress)
    checks = [FileCheck(path, record, advance) for record in manifest.files]
    for check in checks:
        while check.advance():
            pass
    return [check.name for check in checks if check.is_damaged]


class FileCheck:
    """One file of a package, hashed in pieces; one of another length is not read."""

    def __init__(self, package: Path, record: FileRecord, progress: Callable[[int], None]) -> None:
        """Look at the file.

        Args:
            package: the package's folder.
            record: what the manifest says of the file.
            progress: called with the number of bytes of each chunk once it is hashed.

        Raises:
            PackageError: it is missing, no regular file, or leads out of the package.
        """
        self.name, self._package, self._record, self._progress = record.path, package, record, progress
        try:
            self._hash = FileHash(inside(package, record.path), progress)
        except CheckpointError as error:
            raise self._explained(error) from error

    def __reduce__(self) -> tuple[object, ...]:
        """A copy begins at the beginning."""
        return FileCheck, (self._package.absolute(), self._record, uncounted)

    @property
    def is_damaged(self) -> bool:
        """Whether length or SHA-256 is another; known once `advance` returned False."""
        return self._has_other_length or self._hash.hexdigest() != self._record.sha256

    def is_ready(self) -> bool:
        """Always: the file is there."""
        return True

    def is_complete(self) -> bool:
        return True

    def advance(self) -> bool:
        """Hash a piece; False after the last one.

        Raises:
            PackageError: the file cannot be read.
        """
        if self._has_other_length:
            self._progress(self._record.num_bytes)
            return False
        try:
            return self._hash.advance()
        except CheckpointError as error:
            raise self._explained(error) from error

    def report(self) -> tuple[int, str]:
        """Length and hash of the file, at its end."""
        return self._hash.report()

    def accept(self, report: tuple[int, str]) -> None:
        """Take what a copy reports."""
        if self._has_other_length:
            self._progress(self._record.num_bytes)
        else:
            self._hash.accept(report)

    @property
    def _has_other_length(self) -> bool:
        return self._hash.num_bytes_in_file != self._record.num_bytes

    def _explained(self, error: CheckpointError) -> PackageError:
        return PackageError(f"{error} It is part of the package {self._package}.")
