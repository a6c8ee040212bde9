"""Pulling a package from the Hub into a folder: download beside it, compare every hash, rename.

PACKAGE.pulling  becomes PACKAGE; an interrupted pull goes on where it stopped, within a file too
"""

import glob
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mxconv.checkpoint.hub import Repository, check_hub_id, list_repository, retried, translated_errors
from mxconv.errors import PackageError
from mxconv.package.manifest import FILE_NAME, Manifest, read_manifest
from mxconv.package.package_folder import damaged_files, differing, listed_files
from mxconv.package.recipe import FILE_NAME as RECIPE
from mxconv.package.staging import check_target
from mxconv.progress import Progress, silent
from mxconv.system.disk import put_in_place, recover, remove
from mxconv.system.processor import usable_processors


@dataclass(frozen=True)
class Pulled:
    """A package that was downloaded."""

    commit: str | None  # None: built from a recipe here
    manifest: Manifest


def pull(
    repo_id: str, target: Path, *, revision: str | None = None, force: bool = False, progress: Progress = silent
) -> Pulled:
    """Download a package, or build it where the repository holds its recipe.

    Args:
        repo_id: `owner/name`, or the path of a recipe.
        target: the package's folder; must not exist, unless it is a package and `force` is set.
        revision: branch, tag or commit; the default branch when None.
        force: replace the package at `target`.
        progress: told about the hashing; the Hub client shows the download itself.

    Raises:
        PackageError: the repository is no package or another one than its manifest says, or the target does not
            allow it. Nothing half-written is left at `target`.
        CheckpointError: no such repository or revision, no access, or no connection.
    """
    target = target.absolute()
    recover(target)
    check_target(target, force)
    if (file := Path(repo_id)).suffix == ".json" and file.is_file():
        from mxconv.rebuild import build  # all of a conversion

        return Pulled(None, build(file, target, progress=progress, num_threads=usable_processors(), force=force))
    check_hub_id(repo_id, needs_owner=True)
    listing = list_repository(repo_id, revision)
    if FILE_NAME not in listing.names and RECIPE in listing.names:
        from mxconv.rebuild import build, fetch_recipe

        recipe = fetch_recipe(repo_id, listing.commit)
        manifest = build(recipe, target, progress=progress, num_threads=usable_processors(), force=force)
        return Pulled(listing.commit, manifest)
    if FILE_NAME not in listing.names:
        raise PackageError(
            f"{repo_id}: holds no {FILE_NAME}; a repository that `mxconv push` wrote is required. "
            f"Convert it instead: mxconv quantize {repo_id} -o FOLDER"
        )
    staging = target.with_name(target.name + ".pulling")
    _download(listing, [FILE_NAME], staging)
    manifest = read_manifest(staging)
    _download(listing, listed_files(manifest, listing), staging)
    if damaged := damaged_files(staging, manifest.files, progress):
        for name in damaged:
            (staging / name).unlink()
        raise differing(repo_id, damaged)
    _keep_only(staging, {FILE_NAME, *(record.path for record in manifest.files)})
    check_target(target, force)
    try:
        put_in_place(staging, target)
    except OSError as error:
        raise PackageError(
            f"{target}: cannot be put in place ({error.strerror}); a writable folder is required. "
            f"The package is whole in {staging}: move it, or run again."
        ) from error
    return Pulled(listing.commit, manifest)


def _download(listing: Repository, names: Iterable[str], folder: Path) -> None:
    """Into a folder, not the cache: no second copy, and what is there already is not downloaded again."""
    from huggingface_hub import snapshot_download

    patterns = [glob.escape(name) for name in names]
    with translated_errors(listing.id, listing.commit, folder):
        retried(
            lambda: snapshot_download(listing.id, revision=listing.commit, local_dir=folder, allow_patterns=patterns)
        )


def _keep_only(folder: Path, names: set[str]) -> None:
    """Delete the client's notes, and files of another package that an earlier pull began."""
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    for path in sorted(folder.rglob("*"), reverse=True):  # files before the folders that they are in
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(folder).as_posix() not in names:
            remove(path)
