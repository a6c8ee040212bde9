"""Pushing a package to the Hub: check, compare with what is there, upload what differs, commit once.

    publication = prepare_publication(Path("package"))
    pushed = push(publication, "user/repo")

Large files go first, one after another. The Hub stores them by their hash, so a push that was interrupted and is
repeated sends only what it had not finished; readers see all files of a package or none of them, since one commit at
the end names them. Tokens, retries and progress bars are huggingface_hub's.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mxconv.checkpoint.hub import retried
from mxconv.checkpoint.regular_file import read_json_object
from mxconv.drafts.readers.reader import reader_of
from mxconv.errors import PackageError
from mxconv.interop.hub.card import FILE_NAME as CARD
from mxconv.interop.hub.card import MARKER, model_card
from mxconv.interop.hub.destination import Destination, open_destination
from mxconv.interop.hub.measurements import Measurements
from mxconv.interop.hub.publication import Publication
from mxconv.interop.hub.source_card import read_source_card
from mxconv.interop.hub.upload_errors import translated_upload_errors
from mxconv.package.manifest import FILE_NAME

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

LARGE_FILE_BYTES = 1_000_000  # smaller ones travel together in the commit


@dataclass(frozen=True)
class Pushed:
    """What is on the Hub now."""

    repo_id: str
    commit: str
    url: str
    files: tuple[str, ...]  # of the package and its card, sorted
    num_bytes_uploaded: int  # of files that are new or changed in this commit
    has_our_card: bool


@dataclass(frozen=True)
class _File:
    content: Path | bytes
    sha256: str
    num_bytes: int


def push(
    publication: Publication,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    measurements: Measurements | None = None,
    force: bool = False,
) -> Pushed:
    """Upload a package and its model card as one commit.

    Args:
        publication: what to upload.
        repo_id: `owner/name`; created where it is missing.
        private: create the repository private.
        revision: a branch, created where it is missing; the default one when None.
        message: of the commit.
        measurements: for the card.
        force: replace files of a repository that is no package, and a card that somebody edited.

    Raises:
        PackageError: it would overwrite what is no package, or the Hub refuses or fails.
        CheckpointError: no valid id.
    """
    with translated_upload_errors(repo_id, revision):
        destination = open_destination(repo_id, revision, private=private)
        files = _package_files(publication)
        changed = {name: file for name, file in files.items() if not destination.holds(name, file.content, file.sha256)}
        if not force:
            _check_overwrites(destination, changed)
        has_our_card = force or _may_write_card(destination)
        if has_our_card:
            source = read_source_card(publication.manifest.source)
            text = model_card(publication.manifest, repo_id, source, measurements, _reader(publication.root))
            files[CARD] = _file_of(text.encode())
            if not destination.holds(CARD, files[CARD].content, files[CARD].sha256):
                changed[CARD] = files[CARD]
        stale = sorted({*destination.package_files()} & {*destination.files} - {*files})
        commit = _commit(
            destination, changed, stale, message or f"Package written by {publication.manifest.created_by}"
        )
    return Pushed(
        repo_id,
        commit.oid,
        commit.commit_url,
        tuple(sorted({*files} | ({CARD} & {*destination.files}))),
        sum(file.num_bytes for file in changed.values()),
        has_our_card,
    )


def _reader(package: Path) -> str | None:
    """The kind of draft that a package is, where it reads hidden states."""
    path = package / "config.json"
    return reader_of(read_json_object(path, unique_keys=False)) if path.is_file() else None


def _package_files(publication: Publication) -> dict[str, _File]:
    files = {
        record.path: _File(publication.root / record.path, record.sha256, record.num_bytes)
        for record in publication.files
    }
    return files | {FILE_NAME: _file_of(publication.manifest_bytes)}


def _file_of(content: bytes) -> _File:
    return _File(content, hashlib.sha256(content).hexdigest(), len(content))


def _check_overwrites(destination: Destination, changed: dict[str, _File]) -> None:
    if destination.is_package:  # this is its next version; the old one stays in the repository's history
        return
    if taken := sorted({*changed} & {*destination.files}):
        raise PackageError(
            f"{destination.repo_id}: is no package and has another {taken[0]!r}; nothing is overwritten. "
            "Choose another repository or --revision, or use --force."
        )


def _may_write_card(destination: Destination) -> bool:
    """Whether there is no card yet, or one that a push wrote and nobody took over."""
    return CARD not in destination.files or MARKER.encode() in destination.read(CARD)


def _commit(destination: Destination, changed: dict[str, _File], stale: list[str], message: str) -> "CommitInfo":
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api, repo_id, revision = HfApi(), destination.repo_id, destination.revision
    additions = []
    for name, file in sorted(changed.items()):
        addition = CommitOperationAdd(name, file.content)
        addition.upload_info.sha256 = bytes.fromhex(file.sha256)  # hashed before: the client need not read it twice
        additions.append(addition)
        if file.num_bytes >= LARGE_FILE_BYTES:
            api.preupload_lfs_files(repo_id, [addition], revision=revision, free_memory=False)
    deletions = [CommitOperationDelete(name) for name in stale]
    return retried(
        lambda: api.create_commit(repo_id, [*additions, *deletions], commit_message=message, revision=revision)
    )
