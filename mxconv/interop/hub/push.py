"""Pushing a package to the Hub: check, compare with what is there, upload what differs, commit once.

    publication = prepare_publication(Path("package"))
    preview(publication, "user/repo")          # the files that a push would send, its card among them
    pushed = push(publication, "user/repo")

Large files go first, one after another. The Hub stores them by their hash, so a push that was interrupted and is
repeated sends only what it had not finished; readers see all files of a package or none of them, since one commit at
the end names them. Tokens, retries and progress bars are huggingface_hub's.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mxconv.checkpoint.hub import check_hub_id, retried, translated_upload_errors
from mxconv.checkpoint.regular_file import open_file, read_json_object
from mxconv.conversion.recipes import make_recipe
from mxconv.drafts.kind import reader_of
from mxconv.errors import PackageError
from mxconv.interop.hub.card import ATTESTATION, MARKER, Measurements, SourceCard, model_card, read_source_card
from mxconv.interop.hub.card import FILE_NAME as CARD
from mxconv.interop.hub.destination import Destination, open_destination
from mxconv.package.level_record import LevelRecord
from mxconv.package.manifest import FILE_NAME, FileRecord, Manifest, read_manifest
from mxconv.package.package_folder import damaged_files
from mxconv.package.recipe import FILE_NAME as RECIPE
from mxconv.package.recipe import FURTHER
from mxconv.progress import Progress, silent

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

    from mxconv.interop.attestation import Attestation

LARGE_FILE_BYTES = 1_000_000  # smaller ones travel together in the commit


@dataclass(frozen=True)
class UploadedFile:
    """A file as it goes to the Hub."""

    content: Path | bytes
    sha256: str
    num_bytes: int

    @classmethod
    def of(cls, content: bytes) -> "UploadedFile":
        return cls(content, hashlib.sha256(content).hexdigest(), len(content))


@dataclass(frozen=True)
class Publication:
    """A package as others will have it."""

    root: Path
    manifest: Manifest
    files: dict[str, "UploadedFile"]  # without a card
    is_recipe: bool = False
    attestation: "Attestation | None" = None


@dataclass(frozen=True)
class Pushed:
    """The package as it is on the Hub now."""

    repo_id: str
    commit: str
    url: str
    files: tuple[str, ...]  # of the package and its card, sorted
    num_bytes_uploaded: int  # of files that are new or changed in this commit
    has_our_card: bool


def prepare_publication(package: Path, *, drafts_only: bool = False, progress: Progress = silent) -> Publication:
    """Choose what to upload, and hash it.

    Args:
        package: the package's folder.
        drafts_only: leave the target out; the uploaded manifest then references it at the source's id and commit.
        progress: told about every file.

    Raises:
        PackageError: a file is not what the manifest says, or nobody else could find the target.
    """
    manifest = read_manifest(package)
    source = manifest.source
    if manifest.levels[0].location == "source" and source.commit is None:
        raise PackageError(
            f"{package}: references its target in the folder {source.id}, which nobody else has; a target on the Hub "
            "or in the package is required. Convert again with --target include, or from the model's Hub id."
        )
    with open_file(package / FILE_NAME) as file:
        content = file.read()
    if drafts_only and manifest.levels[0].location == "package":
        manifest = _without_target(manifest, str(package))
        content = manifest.to_bytes()
    if damaged := damaged_files(package, manifest.files, progress):
        raise PackageError(
            f"{package / damaged[0]}: its SHA-256 is not the one in {FILE_NAME}; only whole packages are pushed. "
            "Convert again."
        )
    return Publication(package, manifest, _files(package, manifest.files) | {FILE_NAME: UploadedFile.of(content)})


def prepare_recipe(package: Path, folder: Path, progress: Progress = silent) -> Publication:
    """The recipe of a package, in place of it.

    Args:
        package: the package's folder.
        folder: an empty one, for the files that no source gives; they are uploaded from there.
        progress: told about every file.

    Raises:
        PackageError: a file is not what the manifest says, or the source is on no Hub.
    """
    source = read_manifest(package).source
    if source.commit is None:
        raise PackageError(
            f"{package}: --recipe, but it was converted from {source.id}; a source on the Hub is required for others "
            "to find it. Convert again from the model's Hub id."
        )
    recipe = make_recipe(package, folder, progress)
    further = {f"{FURTHER}/{name}": file for name, file in _files(folder, recipe.further).items()}
    files = further | {RECIPE: UploadedFile.of(recipe.to_bytes())}
    return Publication(package, read_manifest(package), files, is_recipe=True)


def attested(publication: Publication, path: Path) -> Publication:
    """With an attestation; raises MxconvError unless it is about this package. Who signed it, readers check."""
    from mxconv.interop.attestation import check_subject, read_attestation  # of an extra

    attestation = read_attestation(path)
    check_subject(attestation, publication.root)
    files = publication.files | {ATTESTATION: UploadedFile.of(path.read_bytes())}
    return replace(publication, files=files, attestation=attestation)


def _files(root: Path, records: list[FileRecord]) -> dict[str, UploadedFile]:
    return {record.path: UploadedFile(root / record.path, record.sha256, record.num_bytes) for record in records}


def preview(
    publication: Publication, repo_id: str, measurements: Measurements | None = None
) -> dict[str, UploadedFile]:
    """List the files that a push into an empty repository sends, and write its card; the Hub is not contacted.

    A source on the Hub has a license and languages in its own card there, which only a push reads.

    Raises:
        CheckpointError: no valid id.
    """
    check_hub_id(repo_id, needs_owner=True)
    source = publication.manifest.source
    card = _card(publication, repo_id, SourceCard() if source.commit else read_source_card(source), measurements)
    return publication.files | {CARD: card}


def _card(
    publication: Publication, repo_id: str, source: SourceCard, measurements: Measurements | None
) -> UploadedFile:
    config = publication.root / "config.json"
    text = model_card(
        publication.manifest,
        repo_id,
        source,
        measurements,
        reader_of(read_json_object(config, unique_keys=False)) if config.is_file() else None,
        is_recipe=publication.is_recipe,
        attestation=publication.attestation,
    )
    return UploadedFile.of(text.encode())


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
        manifest, files = publication.manifest, dict(publication.files)
        changed = {name: file for name, file in files.items() if not destination.holds(name, file.content, file.sha256)}
        taken = sorted({*changed} & {*destination.files})
        if taken and not (force or destination.is_package):  # a package's old version stays in the history
            raise PackageError(
                f"{repo_id}: is no package and has another {taken[0]!r}; nothing is overwritten. "
                "Choose another repository or --revision, or use --force."
            )
        has_our_card = force or CARD not in destination.files or MARKER.encode() in destination.read(CARD)
        if has_our_card:
            files[CARD] = _card(publication, repo_id, read_source_card(manifest.source), measurements)
            if not destination.holds(CARD, files[CARD].content, files[CARD].sha256):
                changed[CARD] = files[CARD]
        stale = sorted({*destination.package_files()} & {*destination.files} - {*files})
        commit = _commit(destination, changed, stale, message or f"Package written by {manifest.created_by}")
    return Pushed(
        repo_id,
        commit.oid,
        commit.commit_url,
        tuple(sorted({*files} | ({CARD} & {*destination.files}))),
        sum(file.num_bytes for file in changed.values()),
        has_our_card,
    )


def _commit(destination: Destination, changed: dict[str, UploadedFile], stale: list[str], message: str) -> "CommitInfo":
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


def _without_target(manifest: Manifest, label: str) -> Manifest:
    """The manifest of the same package with its target referenced, not included; `label` names it in errors.

    Raises:
        PackageError: the target is found nowhere else.
    """
    source, target = manifest.source, manifest.levels[0]
    of_source = [record for record in manifest.files if record in source.files]  # same name, length and hash
    if target.codec == "bsfp":
        raise PackageError(
            f"{label}: --drafts-only of a BSFP package; its draft and its target share the same bytes, so one cannot "
            "go without the other. Push it whole, or convert with --codec mxfp4."
        )
    if source.commit is None:
        raise PackageError(
            f"{label}: --drafts-only, but it was converted from the folder {source.id}; a target on the Hub is "
            "required for others to find it. Convert again from the model's Hub id, or push without --drafts-only."
        )
    if not {record.path for record in of_source}.issuperset(target.files):
        raise PackageError(
            f"{label}: --drafts-only, but its 16-bit target was made by the conversion and is on the Hub nowhere else; "
            "16-bit safetensors in the source are required. Push without --drafts-only."
        )
    levels: list[LevelRecord] = [target.model_copy(update={"location": "source", "files": []}), *manifest.levels[1:]]
    return manifest.model_copy(
        update={
            "levels": levels,
            "options": manifest.options.model_copy(update={"target": "reference"}),
            "lossless": False,
            "files": [record for record in manifest.files if record not in of_source],
            "certificate": None,  # it was about another set of files
        }
    )
