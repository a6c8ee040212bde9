"""Fetching a package from the Hub: the files that its manifest lists, at one commit, into the Hub client's cache."""

import os
from pathlib import Path

from mxconv.checkpoint.hub_errors import HubUnreachableError
from mxconv.checkpoint.hub_repository import Repository, cached_snapshot, fetch_files, list_repository
from mxconv.errors import PackageError
from mxconv.package.damaged_files import damaged_files
from mxconv.package.manifest import FILE_NAME, Manifest, read_manifest
from mxconv.progress import Progress, silent


def fetch_package(repo_id: str, revision: str | None, progress: Progress = silent) -> Path | None:
    """Download a package unless it is in the cache already; each downloaded file is hashed once.

    Args:
        repo_id: `owner/name`.
        revision: branch, tag or commit; the default branch when None.
        progress: told about the hashing; the Hub client shows the download itself.

    Returns:
        The package's folder in the cache, or None where the repository is no package. When the Hub cannot be
        reached, a complete copy in the cache serves.

    Raises:
        CheckpointError: no such repository or revision, no access, or no connection and no copy.
        PackageError: the manifest is refused, or the repository does not hold what it lists.
    """
    try:
        listing = list_repository(repo_id, revision)
        return _download(listing, revision, progress) if FILE_NAME in listing.names else None
    except HubUnreachableError:
        root = cached_snapshot(repo_id, revision)
        if root is not None and not (root / FILE_NAME).exists():  # a manifest is the first file to be downloaded
            return None
        if root is None or not _is_complete(root):
            raise
        return root


def listed_files(manifest: Manifest, listing: Repository) -> list[str]:
    """The package's files but the manifest, all of which the repository must have.

    Raises:
        PackageError: it lacks one.
    """
    names = [record.path for record in manifest.files]
    if missing := sorted({*names} - {*listing.names}):
        raise PackageError(
            f"{listing.id}: {FILE_NAME} lists {missing[0]!r}, which the repository does not have; every file is "
            "required. Try another --revision, or tell the package's owner."
        )
    return names


def differing(repo_id: str, names: list[str]) -> PackageError:
    """The error for downloaded files that are not those of the manifest."""
    return PackageError(
        f"{repo_id}: the SHA-256 of {names[0]!r} is not the one in {FILE_NAME}; the files that were pushed are "
        "required. Run again; if it stays so, tell the package's owner."
    )


def _download(listing: Repository, revision: str | None, progress: Progress) -> Path:
    # by branch or tag, so that the cache remembers what it pointed to for the day the Hub is out of reach
    root = fetch_files(listing.id, [FILE_NAME], revision)
    if root.name != listing.commit:  # somebody pushed since the listing
        listing = list_repository(listing.id, root.name)
    manifest = read_manifest(root)
    names = listed_files(manifest, listing)
    new = [record for record in manifest.files if not (root / record.path).is_file()]
    if not new:
        return root
    fetch_files(listing.id, names, listing.commit)
    if damaged := damaged_files(root, manifest.model_copy(update={"files": new}), progress):
        for name in damaged:
            _drop(root / name)
        raise differing(listing.id, damaged)
    return root


def _is_complete(root: Path) -> bool:
    try:
        return all((root / record.path).is_file() for record in read_manifest(root).files)
    except PackageError:
        return False


def _drop(path: Path) -> None:
    """Take a file out of the cache: its blob, and the link that names it."""
    Path(os.path.realpath(path)).unlink(missing_ok=True)
    path.unlink(missing_ok=True)
