"""Fetching a package from an object store: the files that its manifest lists, into the cache of the Hub's client."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from mxconv.checkpoint.json_file import MAX_JSON_BYTES
from mxconv.checkpoint.store.store import Store
from mxconv.errors import PackageError
from mxconv.package.manifest import FILE_NAME, FileRecord, read_manifest
from mxconv.progress import Progress, silent

CHUNK_BYTES = 32 << 20


def fetch_store_package(url: str, progress: Progress = silent) -> Path | None:
    """Download a package unless it is in the cache already; each downloaded file is hashed once.

    A package with another manifest gets another folder of the cache, so what is there never changes. Where the cache
    lies `HF_HOME` says.

    Args:
        url: of the package's folder.
        progress: told about the download.

    Returns:
        The package's folder in the cache, or None where there is no package.

    Raises:
        PackageError: the manifest is refused, a file of it is not there or is another one, or nobody answers.
    """
    from huggingface_hub import cached_assets_path

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
        done, total = 0, sum(record.num_bytes for record in records)

        def advance(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            progress("fetch package", done, total)

        for record in records:
            path = root / record.path
            if path.is_file() and path.stat().st_size == record.num_bytes:
                advance(record.num_bytes)
            else:
                _fetch(store, record, path, advance)
    return root


def _fetch(store: Store, record: FileRecord, path: Path, advance: Callable[[int], None]) -> None:
    """One file; it gets its name when all of it is there and is what the manifest says."""
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
