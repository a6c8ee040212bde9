"""A Hub repository at one commit: what it holds, and how files of it come into the Hub client's own cache.

Tokens, mirrors, the cache's place, offline mode and progress bars are huggingface_hub's, set by its
environment variables.
"""

import glob
import ntpath
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mxconv.checkpoint.hub_errors import translated_errors
from mxconv.errors import CheckpointError

_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_TIMEOUT_SECONDS = 30.0
_WAITS_SECONDS = (0.25, 1.0)  # before each further try of a request that the client itself sends only once
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Repository:
    """The listing of a model repository."""

    id: str
    commit: str
    names: tuple[str, ...]


def is_hub_id(text: str) -> bool:
    """Whether the text has the form `owner/name`."""
    return _ID.fullmatch(text) is not None


def check_hub_id(text: str) -> None:
    """Refuse what cannot be a repository.

    Raises:
        CheckpointError: it has not the form `owner/name`.
    """
    if not is_hub_id(text):
        raise CheckpointError(f"{text}: no Hub id; owner/name is required. Check the spelling.")


def list_repository(repo_id: str, revision: str | None) -> Repository:
    """Ask the Hub for a repository's commit and file names.

    Args:
        repo_id: `owner/name`.
        revision: branch, tag or commit; the default branch when None.

    Raises:
        CheckpointError: no such repository or revision, no access, no connection, or a file name that leads astray.
    """
    from huggingface_hub import HfApi

    check_hub_id(repo_id)
    with translated_errors(repo_id, revision):
        found = retried(lambda: HfApi().model_info(repo_id, revision=revision, timeout=_TIMEOUT_SECONDS))
    names = tuple(sibling.rfilename for sibling in found.siblings or [])
    check_names(repo_id, names)
    assert found.sha is not None
    return Repository(repo_id, found.sha, names)


def check_names(repo_id: str, names: Iterable[str]) -> None:
    """Refuse a listing with names that would lead out of a folder.

    Raises:
        CheckpointError: one is absolute, or has a drive, `..` or a backslash in it.
    """
    for name in names:
        if name.startswith("/") or ntpath.splitdrive(name)[0] or "\\" in name or ".." in name.split("/"):
            raise CheckpointError(
                f"{repo_id}: lists a file named {name!r}; a path inside the repository is required. "
                "Do not use this repository unless you know who made it."
            )


def fetch_files(repo_id: str, names: Iterable[str], revision: str | None) -> Path:
    """Bring files into the cache, unless they are there; the snapshot's folder, named by the commit.

    Raises:
        CheckpointError: the download failed.
    """
    from huggingface_hub import snapshot_download

    patterns = [glob.escape(name) for name in names]
    with translated_errors(repo_id, revision):
        return Path(retried(lambda: snapshot_download(repo_id, revision=revision, allow_patterns=patterns)))


def cached_snapshot(repo_id: str, revision: str | None) -> Path | None:
    """The snapshot that an earlier download left in the cache, complete or not."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # no pattern matches a file: it asks for the folder alone, whose completeness is for the caller to judge
        return Path(snapshot_download(repo_id, revision=revision, local_files_only=True, allow_patterns=[]))
    except LocalEntryNotFoundError:
        return None


def retried(request: Callable[[], _Answer]) -> _Answer:
    """Send a request again, after a moment, while the Hub answers with a failure of its own (HTTP 5xx)."""
    for seconds in _WAITS_SECONDS:
        try:
            return request()
        except Exception as error:  # each version of the client brings another HTTP library with its own exceptions
            # the client hides some answers of the Hub behind "not found in the cache"
            answers: list[Any] = [getattr(e, "response", None) for e in (error, error.__cause__)]
            if not any(answer is not None and answer.status_code >= 500 for answer in answers):
                raise
            time.sleep(seconds)
    return request()
