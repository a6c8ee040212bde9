"""Where a package lies: in a local folder, or in a cache under the id of a Hub repository or a URL."""

import os
from pathlib import Path

from mxconv.checkpoint.hub_repository import is_hub_id
from mxconv.checkpoint.store.address import is_store_url
from mxconv.errors import CheckpointError, PackageError
from mxconv.package.hub_package import fetch_package
from mxconv.package.manifest import FILE_NAME
from mxconv.progress import Progress, silent


def find_package(package: str | Path, revision: str | None = None, progress: Progress = silent) -> Path:
    """The folder of a package, downloaded where a Hub id or a URL is given. A path that exists wins.

    Args:
        package: a folder, a Hub id `owner/name`, or the URL of a folder on an object store.
        revision: branch, tag or commit of a Hub repository; its default branch when None.
        progress: told about the hashing of downloaded files.

    Raises:
        PackageError: the repository is no package, or does not hold what its manifest says.
        CheckpointError: no such repository, no access, or no connection and no copy; a revision of a local folder.
    """
    found = find_package_or_none(package, revision, progress)
    if found is not None:
        return found
    if is_store_package(package):
        raise PackageError(
            f"{package}: holds no {FILE_NAME}; a package is required, which has it when it is complete. "
            f"Convert a model first: mxconv quantize MODEL -o {package}"
        )
    if not is_hub_package(package):
        return Path(package)  # opening it says what is wrong with it
    raise PackageError(
        f"{package}: holds no {FILE_NAME}; a repository that `mxconv push` wrote is required. "
        f"Convert it first: mxconv quantize {package} -o FOLDER"
    )


def find_package_or_none(source: str | Path, revision: str | None = None, progress: Progress = silent) -> Path | None:
    """The folder of a package, as `find_package` gives it; None for a folder, file or repository that is none."""
    if is_store_package(source):
        from mxconv.package.store_package import fetch_store_package  # late: fsspec takes long to import

        if revision is not None:
            raise CheckpointError(f"{source}: revision {revision!r} was asked of an object store. Leave it out.")
        return fetch_store_package(str(source), progress)
    path = Path(source)
    if not is_hub_package(source):
        if not (path / FILE_NAME).exists():
            return None
        if revision is not None:
            raise CheckpointError(
                f"{path}: revision {revision!r} was asked of a local path; only Hub repositories have revisions. "
                "Leave --revision out, or give the Hub id."
            )
        return path
    return fetch_package(str(source), revision, progress)


def is_hub_package(package: str | Path) -> bool:
    """Whether a package is asked for by its Hub id: the text has that form, and no such path exists."""
    return not os.path.lexists(package) and is_hub_id(str(package))


def is_store_package(package: str | Path) -> bool:
    """Whether a package is asked for by a URL."""
    return is_store_url(str(package)) and not os.path.lexists(package)


def check_writable(package: str | Path, what: str) -> None:
    """Refuse a package that is not a local folder.

    Args:
        package: as the user named it.
        what: would be written there.

    Raises:
        PackageError: a Hub id or a URL.
    """
    if is_hub_package(package):
        raise PackageError(
            f"{package}: a package on the Hub; {what} is written into a local folder. "
            f"Download it first: mxconv pull {package} -o FOLDER"
        )
    if is_store_package(package):
        raise PackageError(
            f"{package}: a package on an object store; {what} is written into a local folder. Download the folder "
            "first, with the store's own client."
        )
