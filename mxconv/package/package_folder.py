"""Where a package lies: in a local folder, or in a cache under the id of a Hub repository or a URL.

A package on the Hub or on an object store is downloaded once: the files that its manifest lists, each hashed. Packages
of the Hub are in its client's cache, those of stores in a folder beside it (`HF_HOME`).
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from mxconv.checkpoint.regular_file import MAX_JSON_BYTES, check_regular_file
from mxconv.errors import CheckpointError, PackageError
from mxconv.package.manifest import FILE_NAME, FileRecord, Manifest, read_manifest
from mxconv.package.package import inside
from mxconv.progress import Progress, silent

if TYPE_CHECKING:
    from mxconv.checkpoint.hub import Repository
    from mxconv.checkpoint.object_store import Store
    from mxconv.workers import Advance

CHUNK_BYTES = 32 << 20


class UnbuiltRecipeError(PackageError):
    """A repository holds a recipe whose package was not built here yet: `snapshot` is its folder in the Hub cache."""

    def __init__(self, repo_id: str, snapshot: Path) -> None:
        super().__init__(
            f"{repo_id}: holds the recipe of a package that was not built here yet; a built one is required. "
            f"Build it: mxconv pull {repo_id} -o FOLDER"
        )
        self.repo_id, self.snapshot = repo_id, snapshot

    def __reduce__(self) -> tuple[type["UnbuiltRecipeError"], tuple[str, Path]]:
        return type(self), (self.repo_id, self.snapshot)


def find_package(package: str | Path, revision: str | None = None, progress: Progress = silent) -> Path:
    """The folder of a package, downloaded where a Hub id or a URL is given. A path that exists wins.

    Raises:
        PackageError: the repository is no package, or does not hold what its manifest says.
        UnbuiltRecipeError: it holds a recipe whose package was not built here yet.
        CheckpointError: no such repository, no access, or no connection and no copy; a revision of a local folder.
    """
    found = find_package_or_none(package, revision, progress)
    if found is not None:
        return found
    if _is_on_store(package):
        raise PackageError(
            f"{package}: holds no {FILE_NAME}; a package is required, which has it when it is complete. "
            f"Convert a model first: mxconv quantize MODEL -o {package}"
        )
    if not _is_on_hub(package):
        return Path(package)  # opening it says what is wrong with it
    raise PackageError(
        f"{package}: holds no {FILE_NAME}; a repository that `mxconv push` wrote is required. "
        f"Convert it first: mxconv quantize {package} -o FOLDER"
    )


def find_package_or_none(source: str | Path, revision: str | None = None, progress: Progress = silent) -> Path | None:
    """The folder of a package, as `find_package` gives it; None for a folder, file or repository that is none."""
    if _is_on_hub(source):
        from mxconv.checkpoint.hub import parse_address

        return _fetch_from_hub(*parse_address(str(source), revision), progress)
    is_on_store = _is_on_store(source)
    if not is_on_store and not (Path(source) / FILE_NAME).exists():
        return None
    if revision is not None:
        from mxconv.checkpoint.source import check_no_revision

        check_no_revision(source, revision)
    return _fetch_from_store(str(source), progress) if is_on_store else Path(source)


def _is_on_hub(package: str | Path) -> bool:
    """Whether the text has the form of a Hub id or is the address of its page, and no such path exists."""
    if os.path.lexists(package):
        return False
    from mxconv.checkpoint.hub import is_hub_id, parse_address

    return is_hub_id(parse_address(str(package), None)[0])


def _is_on_store(package: str | Path) -> bool:
    if os.path.lexists(package) or _is_on_hub(package):
        return False
    from mxconv.checkpoint.object_store import is_store_url

    return is_store_url(str(package))


def check_writable(package: str | Path, what: str) -> None:
    """Refuse a package that is not a local folder; `what` would be written there.

    Raises:
        PackageError: a Hub id or a URL.
    """
    if _is_on_hub(package):
        raise PackageError(
            f"{package}: a package on the Hub; {what} is written into a local folder. "
            f"Download it first: mxconv pull {package} -o FOLDER"
        )
    if _is_on_store(package):
        raise PackageError(
            f"{package}: a package on an object store; {what} is written into a local folder. Download the folder "
            "first, with the store's own client."
        )


def damaged_files(path: Path, records: Iterable[FileRecord], progress: Progress = silent) -> list[str]:
    """Hash files of a package; those whose length or SHA-256 is not the recorded one.

    Raises:
        PackageError: a file is missing, no regular file, or leads out of the package.
        CheckpointError: a file cannot be read.
    """
    from mxconv.checkpoint.regular_file import sha256_file
    from mxconv.workers import ByteCounter

    records = list(records)
    advance = ByteCounter("hash package", sum(record.num_bytes for record in records), progress)
    sha256s = [sha256_file(file, advance) if file else None for file in files_to_hash(path, records, advance)]
    return [record.path for record, sha256 in zip(records, sha256s, strict=True) if sha256 != record.sha256]


def files_to_hash(path: Path, records: Iterable[FileRecord], advance: "Advance") -> list[Path | None]:
    """The paths of files of a package; None where the length is not the recorded one, so that no hash is needed.

    Raises:
        PackageError: a file is missing, no regular file, or leads out of the package.
    """
    files: list[Path | None] = []
    try:
        for record in records:
            is_as_long = check_regular_file(file := inside(path, record.path)) == record.num_bytes
            files.append(file.absolute() if is_as_long else None)
            advance(0 if is_as_long else record.num_bytes)
    except CheckpointError as error:
        raise PackageError(f"{error} It is part of the package {path}.") from error
    return files


def listed_files(manifest: Manifest, listing: "Repository") -> list[str]:
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


def _fetch_from_hub(repo_id: str, revision: str | None, progress: Progress) -> Path | None:
    """The package's folder in the cache, or None where the repository is no package.

    When the Hub cannot be reached, a complete copy in the cache serves.
    """
    from mxconv.checkpoint.hub import HubUnreachableError, cached_snapshot, fetch_files, list_repository
    from mxconv.package.recipe import FILE_NAME as RECIPE

    try:
        listing = list_repository(repo_id, revision)
        if FILE_NAME not in listing.names:
            if RECIPE not in listing.names:
                return None
            return _built(repo_id, fetch_files(repo_id, [RECIPE], revision))
        # by branch or tag, so that the cache remembers what it pointed to for the day the Hub is out of reach
        root = fetch_files(repo_id, [FILE_NAME], revision)
        if root.name != listing.commit:  # somebody pushed since the listing
            listing = list_repository(repo_id, root.name)
        manifest = read_manifest(root)
        names = listed_files(manifest, listing)
        if new := [record for record in manifest.files if not (root / record.path).is_file()]:
            fetch_files(repo_id, names, listing.commit)
            if damaged := damaged_files(root, new, progress):
                for name in damaged:  # out of the cache: the blob, and the link that names it
                    Path(os.path.realpath(root / name)).unlink(missing_ok=True)
                    (root / name).unlink(missing_ok=True)
                raise differing(repo_id, damaged)
        return root
    except HubUnreachableError:
        cached = cached_snapshot(repo_id, revision)
        if cached is not None and (cached / RECIPE).exists():
            return _built(repo_id, cached)
        if cached is not None and not (cached / FILE_NAME).exists():  # a manifest is the first file to be downloaded
            return None
        if cached is None or not _is_complete(cached):
            raise
        return cached


def built_folder(repo_id: str, snapshot: Path) -> Path:
    """Return the folder of the cache for the package of a repository's recipe, whether it was built yet or not."""
    from huggingface_hub import cached_assets_path

    from mxconv.package.recipe import FILE_NAME as RECIPE
    from mxconv.package.recipe import read_recipe

    manifest = read_recipe(snapshot / RECIPE).package
    name = f"{repo_id.rpartition('/')[2]}-{manifest.manifest_sha256[:16]}"
    return cached_assets_path("mxconv", "packages", "built") / name


def _built(repo_id: str, snapshot: Path) -> Path:
    root = built_folder(repo_id, snapshot)
    if not root.exists():
        raise UnbuiltRecipeError(repo_id, snapshot)
    return root


def _is_complete(root: Path) -> bool:
    try:
        return all((root / record.path).is_file() for record in read_manifest(root).files)
    except PackageError:
        return False


def _fetch_from_store(url: str, progress: Progress) -> Path | None:
    """The package's folder in the cache, or None where there is no package.

    A package with another manifest gets another folder of the cache, so what is there never changes.
    """
    from huggingface_hub import cached_assets_path

    from mxconv.checkpoint.object_store import Store
    from mxconv.workers import ByteCounter

    store = Store(url, PackageError)
    look = store.look(FILE_NAME)
    if look is None:
        return None
    if look.num_bytes > MAX_JSON_BYTES:
        raise PackageError(
            f"{store.path(FILE_NAME)}: {look.num_bytes:,} bytes; at most {MAX_JSON_BYTES:,} are read. Convert again."
        )
    manifest = store.read_all(FILE_NAME)
    digest = hashlib.sha256(manifest).hexdigest()[:16]
    root = cached_assets_path("mxconv", "packages", f"{store.url.rpartition('/')[2]}-{digest}")
    with FileLock(root.with_name(root.name + ".lock")):
        (root / FILE_NAME).write_bytes(manifest)
        records = read_manifest(root).files
        advance = ByteCounter("fetch package", sum(record.num_bytes for record in records), progress)
        for record in records:
            path = root / record.path
            if path.is_file() and path.stat().st_size == record.num_bytes:
                advance(record.num_bytes)
            else:
                fetch_file(store, record, path, advance)
    return root


def fetch_file(store: "Store", record: FileRecord, path: Path, advance: "Advance") -> None:
    """Download a file; it gets its name when all of it is there and is what the manifest says."""
    url, look = store.path(record.path), store.look(record.path)
    if look is None or look.num_bytes != record.num_bytes:
        found = "is not there" if look is None else f"has {look.num_bytes:,} bytes"
        raise PackageError(
            f"{url}: {found}; {FILE_NAME} lists it with {record.num_bytes:,} bytes. Convert again, to another place."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, digest = path.with_name(path.name + ".partial"), hashlib.sha256()
    with partial.open("wb") as file:
        for begin in range(0, record.num_bytes, CHUNK_BYTES):
            chunk = store.read(record.path, begin, min(begin + CHUNK_BYTES, record.num_bytes))
            digest.update(chunk)
            file.write(chunk)
            advance(len(chunk))
    if digest.hexdigest() != record.sha256:
        partial.unlink()
        raise PackageError(
            f"{url}: its SHA-256 is not the one in {FILE_NAME}; the file that was written is required. Run again; if "
            "it stays so, convert again."
        )
    partial.replace(path)
